#!/usr/bin/env bash
# run_torch.sh - an unmodified PyTorch DDP script runs under `lockstep run` as under torchrun: two gloo ranks join,
# all-reduce and average gradients; after a failure, the second generation joins again. Skipped without PyTorch.
# ctest: timeout 300
set -u
python3 -c 'import torch.distributed as d; assert d.is_available() and d.is_gloo_available()' 2> /dev/null ||
    { echo "skipped: no PyTorch with gloo"; exit 77; }
# shellcheck source=test/terminal.bash
. "$SOURCE_DIR/test/terminal.bash"
has_localhost || { echo "skipped: $left_out"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
wrong=0
complain() { echo "$*" >&2; wrong=1; }
unset LOCKSTEP_JOB OMP_NUM_THREADS LOCKSTEP_THREADS
cat > train.py <<'P'
import os, sys, torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel


@record
def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if "--fail-once" in sys.argv and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == 1:
        raise ValueError("not this time")
    total = torch.arange(4.0) * (rank + 1)
    dist.all_reduce(total)
    # One linear layer of ones, the loss is its output: the gradient is the mean of both ranks' inputs.
    model = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    ddp = DistributedDataParallel(model)
    ddp(torch.tensor([[1.0, 2.0, 3.0]]) * (10 if rank else 1)).sum().backward()
    print(f"sum {total.tolist()} gradient {model.weight.grad.tolist()} threads {torch.get_num_threads()} world {world}")
    dist.destroy_process_group()


main()
P
# By hand: (0, 1, 2, 3) × (1 + 2); ((1, 2, 3) + (10, 20, 30)) / 2.
want="sum \[0.0, 3.0, 6.0, 9.0\] gradient \[\[5.5, 11.0, 16.5\]\] threads [0-9]+ world 2"
"$LOCKSTEP" run --nproc-per-node 2 train.py > out.txt 2>&1 || complain "exit status $?"
for rank in 0 1; do grep -Eq "^\[rank $rank\] $want\$" out.txt || complain "rank $rank: $(cat out.txt)"; done

"$LOCKSTEP" run --nproc_per_node=2 --max_restarts=1 --rdzv_backend=c10d --rdzv_endpoint=localhost:0 train.py \
    --fail-once > out.txt 2>&1 ||
    complain "with one restart: exit status $?"
for rank in 0 1; do grep -Eq "^\[rank $rank\] $want\$" out.txt ||
    complain "after a restart, rank $rank: $(cat out.txt)"; done
grep -q "rank 1 failed first: exit code 1" out.txt ||
    complain "the first generation's end is not reported: $(cat out.txt)"
grep -q "error message: ValueError: not this time" out.txt ||
    complain "the error that record wrote is not printed: $(cat out.txt)"

# A DataLoader with as many workers as cores warns no more than under torchrun: ranks may use the cores of others that
# are idle.
cat > load.py <<'P'
import os, sys, torch, warnings
from torch.utils.data import DataLoader, TensorDataset
warnings.simplefilter("error")
print("batches", sum(1 for _ in DataLoader(TensorDataset(torch.zeros(8, 1)), num_workers=int(sys.argv[1]))))
P
"$LOCKSTEP" run -n 2 load.py "$(python3 -c 'import os; print(min(8, len(os.sched_getaffinity(0))))')" > out.txt 2>&1 ||
    complain "a DataLoader with workers: $(cat out.txt)"
[ "$(grep -c '^\[rank [01]\] batches 8$' out.txt)" = 2 ] || complain "a DataLoader with workers: $(cat out.txt)"

# A rank's environment, compared with the real torchrun: every name, and every value except addresses, ports and paths.
if command -v torchrun > /dev/null; then
    printf '%s\n' 'import os' 'lines = sorted(k + "=" + v + "\n" for k, v in os.environ.items())' \
        'open(os.environ["WHO"] + os.environ["RANK"], "w").writelines(lines)' > show.py
    env WHO=theirs OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 --rdzv-id job --role trainer --max-restarts 3 \
        --master-port 0 --rdzv-backend c10d --rdzv-endpoint localhost:0 show.py > out.txt 2>&1 ||
        complain "torchrun: $(cat out.txt)"
    env WHO=ours OMP_NUM_THREADS=1 "$LOCKSTEP" run --nproc-per-node 2 --rdzv-id job --role trainer --max-restarts 3 \
        --rdzv-backend c10d --rdzv-endpoint localhost:0 show.py > out.txt 2>&1 ||
        complain "lockstep run: $(cat out.txt)"
    # Only ours: the job's id and token. Only torchrun's: variables for its own processes.
    differ='WHO|LOCKSTEP_(JOB|TOKEN|FLIGHT_RECORDER|TERMINAL|THREADS|CORES)|'
    differ+='TORCHELASTIC_(SIGNALS_TO_HANDLE|USE_AGENT_STORE)|OLDPWD|_'
    same() {
        grep -vE "^($differ)=" "$1" | sed -E 's/^(MASTER_ADDR|MASTER_PORT|TORCHELASTIC_ERROR_FILE)=.*/\1/'
    }
    for rank in 0 1; do
        diff <(same theirs$rank) <(same ours$rank) > out.txt ||
            complain "rank $rank has another environment than under torchrun: $(cat out.txt)"
    done
else
    echo "skip: no torchrun to compare with"
fi
exit $wrong
