# Source me on the GPU machine, in the repository's root: . benchmarks/offline_kit.sh KIT_FOLDER [wheels]
# Unpacks the kit of offline_kit.py and says where its parts are. "wheels": these alone, which is all that HGEMM wants (1 s instead of 23).
[ -f "$1/site.tar.xz" ] || { echo "error: $1 holds no kit: make one with python benchmarks/offline_kit.py FOLDER --rl" >&2; return 1; }
kit=$(mktemp -d)
for part in "$1"/*.tar.xz; do
    [ "$2" = wheels ] && [ "${part##*/}" != site.tar.xz ] && continue
    tar -xJf "$part" -C "$kit" || return 1
done
export PYTHONPATH="$kit/site:$PWD/src:$PWD" PYTHONUNBUFFERED=1 RAY_USAGE_STATS_ENABLED=0
[ "$2" = wheels ] && return 0
export SASSAFRAS_NVDISASM="$kit/tools/nvdisasm" NEWEST_PTXAS="$kit/tools/ptxas"
# compile what numba compiles on first use once, before several processes would do it at the same time
python3 - <<'PY'
import numpy as np
from sassafras.core import Candidate
from sassafras.timing_model import ModelDevice
from sassafras import load
from sassafras.schedule import ScheduleSpace
from sassafras.validate import Validator

workload = load("suite:softmax")
kernel = workload.build(workload.case(), "sm_90a")
space, device = ScheduleSpace(kernel), ModelDevice()
device.open(workload, workload.case(), kernel)
state, rng = space.start(), np.random.default_rng(0)
state = space.apply(state, space.sample(state, rng))
candidate = space.candidate(state)
assert Validator(kernel.cubin, kernel.name).check(candidate.kernel.cubin).ok
device.run(Candidate(kernel)), device.run(candidate)
PY
