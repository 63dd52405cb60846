#!/usr/bin/env bash
# tensorboard_opens.sh - TensorBoard reads the event files: tags, steps, wall times and values.
set -eu
python3 -c 'import tensorboard' 2>/dev/null || { echo "skipped: python3 has no tensorboard"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$BUILD_DIR/test_tensorboard" "$work/run"
WORK=$work python3 - <<'PY'
import os
import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(os.environ["WORK"] + "/run", size_guidance={"scalars": 0})
events.Reload()
assert sorted(events.Tags()["scalars"]) == ["accuracy/test", "loss/train"], events.Tags()
loss, accuracy = events.Scalars("loss/train"), events.Scalars("accuracy/test")
assert len(loss) == 3000 and len(accuracy) == 30, (len(loss), len(accuracy))
for i, point in enumerate(loss):
    assert (point.step, point.wall_time, point.value) == (i, 1.7e9 + i, np.float32(1 / (1 + i))), (i, point)
for i, point in enumerate(accuracy):
    assert (point.step, point.value) == (100 * i, np.float32(i / 30)), (i, point)
assert events.file_version == 2.0, events.file_version
print(f"{len(loss)} and {len(accuracy)} points")
PY
