"""``python -m sassafras.training``: train the kernel-independent policy on the timing model."""

from __future__ import annotations

if __name__ == "__main__":
    try:
        from sassafras.training.pretraining import main
    except ImportError as error:
        raise SystemExit(f"error: training needs {error.name}: pip install 'sassafras[rl]'") from None
    main()
