#!/usr/bin/env bash
# one_home.sh - facts that have one home are not repeated elsewhere. The command names no data format of files (what it
# compares by name are the two synthetic sets, whose sizes its options set). Environment variables are in the table of
# base/environment.h: nothing else calls getenv, and each LOCKSTEP_… that a source file names is in the table. Nothing
# compares a transport or a device by its name, and what the command prints about a device comes from the device's
# table. Which axes of the mesh placement handles is a constant of plan/plan.h. Placement asks no node which operation
# it is: descriptors say how one is cut.
set -u
cd "${SOURCE_DIR:-$(dirname "$0")/../..}" || exit 1
bad=0
complain() { echo "$*" >&2; bad=1; }

formats=$(sed -n 's/^ *X(\([a-z0-9_]*\)).*/\1/p' src/data/format.h | tr _ -)
[ "$(wc -w <<<"$formats")" -ge 14 ] || complain "src/data/format.h: the list of formats was not found"
for format in $formats; do
    case $format in synthetic | synthetic-tokens) continue ;; esac
    while read -r line; do
        complain "$line: names the data format $format: ask its descriptor (lockstep/data_format.h)"
    done < <(grep -nE "\"$format:[^ ]*\"" cli/*.c cli/*.h)
done

# cli/options.c reads PET_NAME for each option of `lockstep run`, as torchrun does.
while read -r line; do
    complain "$line: read it through the table of src/base/environment.h"
done < <(grep -rnE '\bgetenv *\(' src cli --include='*.[ch]' --include='*.cu' |
    grep -vE '^(src/base/environment.c|cli/options.c):')
table=$(sed -n 's/^ *X(\([A-Z0-9_]*\),.*/\1/p' src/base/environment.h)
[ "$(wc -w <<<"$table")" -ge 60 ] || complain "src/base/environment.h: the table of variables was not found"
named='"LOCKSTEP_[A-Z0-9_]+"|(lk_environment_get|set_variable)\([a-zA-Z]+, "[A-Z0-9_]+"'
for name in $(grep -rhoE "$named" src cli --include='*.[ch]' --include='*.cu' |
    grep -oE '[A-Z][A-Z0-9_]+"' | tr -d '"' | sort -u); do
    case $name in # those that `lockstep run` sets for PyTorch's programs, and does not read
    GROUP_RANK | ROLE_RANK | ROLE_WORLD_SIZE | ROLE_NAME) continue ;;
    TORCHELASTIC_MAX_RESTARTS | TORCHELASTIC_SIGNALS_TO_HANDLE | TORCHELASTIC_ERROR_FILE) continue ;;
    esac
    grep -qx "$name" <<<"$table" || complain "$name is not in the table of src/base/environment.h"
done

# Transports and devices are known by their tables. `-n cpu` is a number of ranks, and an operation of a program says on
# which device it runs.
listed=$(sed -n 's/^#define LK__\(TRANSPORT\|DEVICE\)_LIST(X) *//p' src/comm/transports.h src/device/devices.h |
    grep -oE 'X\([a-z0-9_]+' | sed 's/X(//')
[ "$(wc -w <<<"$listed")" -ge 8 ] || complain "the lists of transports and devices were not found"
for name in $listed; do
    while read -r line; do
        complain "$line: compares a transport or device by its name or address: ask its table"
    done < <(grep -rnE "str(n|)cmp\([^;]*\"$name\"|[!=]= &lk__(backend|device)_$name\>" src cli \
        --include='*.[ch]' --include='*.cu' |
        grep -vE '^(src/launch/topology.c|src/device/custom_create.c):')
done

# Of a device that has rows or options of its own, the command's texts say nothing: lk_device and LK_DEVICE_OPTION_LIST
# do. CUDA_VISIBLE_DEVICES is a variable that `lockstep run` sets.
while read -r line; do
    complain "$line: names a device: its rows, labels and options are in its table (lockstep/device.h)"
done < <(grep -nE '^[^/]*"[^"]*\b([Cc][Uu][Dd][Aa]|share-device|device-sync|tf32)\b[^"]*"' cli/*.[ch] |
    grep -vE '^[^:]*:[0-9]+: */?\*')

while read -r line; do
    complain "$line: names an axis that placement handles: LK__PLAN_PLACED_AXES (src/plan/plan.h) says which"
done < <(grep -rnE '\bLK_AXIS_TENSOR\b' src --include='*.[ch]' | grep -vE '^src/plan/plan.h:')

[ -e src/plan/placement.c ] || complain "src/plan/placement.c was not found"
while read -r line; do
    complain "$line: asks for an operation by its name: its descriptor (src/graph/op.h) says how it is cut"
done < <(grep -nE '[!=]= *LK__OP_|case LK__OP_|LK__OP_[a-z0-9_]+ *[!=]=' src/plan/placement*.[ch] \
    src/plan/tactics*.[ch])

exit $bad
