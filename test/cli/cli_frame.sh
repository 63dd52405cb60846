#!/usr/bin/env bash
# cli_frame.sh - common to all commands: help and man pages from the tables, options in both spellings, configuration
# files, exit statuses, output that cannot be written, colours only on a terminal.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# ctest: timeout 240
cd "$work" || exit 1
wrong=0
complain() { echo "$*" >&2; wrong=1; }
# shellcheck source=test/terminal.bash
. "$SOURCE_DIR/test/terminal.bash"
# shellcheck source=test/wait.bash
. "$SOURCE_DIR/test/wait.bash"

# expect STATUS PATTERN ARGS…: lockstep ARGS ends with STATUS, and either stream matches PATTERN.
expect() {
    local status=$1 pattern=$2 got
    shift 2
    "$LOCKSTEP" "$@" > out.txt 2> err.txt < /dev/null
    got=$?
    [ "$got" = "$status" ] || complain "lockstep $*: exit status $got, not $status: $(cat err.txt)"
    cat out.txt err.txt | grep -Eq -- "$pattern" ||
        complain "lockstep $*: does not print '$pattern': $(cat out.txt err.txt)"
    if [ "$status" = 0 ]; then [ ! -s err.txt ] ||
        complain "lockstep $*: succeeds, but prints on standard error: $(cat err.txt)"; fi
    if [ "$status" = 2 ]; then
        [ ! -s out.txt ] || complain "lockstep $*: a user error, but standard output has: $(cat out.txt)"
        [ $# = 0 ] || [ "$(wc -l < err.txt)" = 1 ] || complain "lockstep $*: more than one line: $(cat err.txt)"
    fi
}

has_lines() { [ "$(grep -c "$2" "$3")" -ge "$1" ]; } # COUNT PATTERN FILE
has_shown() { # so many progress lines, or the session has ended
    tr '\r' '\n' < tty.txt | sed 's/\x1b\[[0-9;]*[A-Za-z]//g' | grep -aE '^(train |step )' > shown.txt
    [ "$(wc -l < shown.txt)" -ge "$1" ] || ! is_running "$session"
}
# train_until LINES COLUMNS OPTIONS…: lockstep train OPTIONS on a terminal of that width, interrupted once it has shown
# so many progress lines; tty.txt has its output, shown.txt its lines.
train_until() {
    local lines=$1 columns=$2 session
    shift 2
    rm -f pid
    : > tty.txt # or the lines of the last call may be read before the shell in the background empties it
    TERM=xterm script -qfec "stty cols $columns; echo \$\$ > pid; exec env --default-signal=INT '$LOCKSTEP' train $*" \
        /dev/null < /dev/null > tty.txt &
    session=$!
    wait_until 60 has_shown "$lines"
    kill -INT "$(cat pid)"
    wait $session
}

version=$(sed -n 's/#define LK_VERSION_STRING "\(.*\)"/\1/p' "$SOURCE_DIR/include/lockstep/base.h")
expect 0 "^lockstep $version\$" --version
expect 0 "Usage: lockstep COMMAND" --help
expect 0 "Usage: lockstep COMMAND" help
expect 2 "Usage: lockstep COMMAND"
expect 0 "Usage: lockstep info" help info
expect 2 "unknown command 'nothing'" help nothing
expect 2 "unknown command 'inof'; did you mean 'info'" inof
expect 2 "unknown command 'xyzzy'; .lockstep help. lists" xyzzy
expect 2 "unknown option --jsn; did you mean --json" info --jsn
expect 2 "unknown option --quite-another-thing$" info --quite-another-thing
expect 2 "unknown option -j" info -j
expect 2 "unexpected argument 'y'" info x y
expect 2 "json: 'maybe' is neither true nor false" info --json=maybe
expect 2 "--man needs a value: --man COMMAND" help --man
expect 2 "--man needs a value" help --man --names
expect 2 "unknown option" info "--$(printf 'x%.0s' $(seq 5000))"
expect 0 "^instruction sets" info --json=false
expect 0 "^\{\"version\": \"$version\"" info --json
expect 0 "^devices +cpu: .*\(in use\)" info
expect 0 "\"devices\": \[\"cpu\"" info --json
export LOCKSTEP_THREADS=3 # as set by a launcher
expect 0 "\"threads\": 3" info --json
unset LOCKSTEP_THREADS
expect 0 "^  --ranks N, -n .*gpu" train --help

# Every command: help and man page list every option; groff reports no warnings.
names=$("$LOCKSTEP" help --names)
[ "$(echo "$names" | wc -l)" -ge 2 ] || complain "help --names lists: $names"
for name in $names; do
    expect 0 "Usage: lockstep $name" "$name" --help
    cp out.txt help.txt
    expect 0 "Usage: lockstep $name" "$name" -h --no-such-option # help comes first
    expect 0 "SH OPTIONS" help --man "$name"
    cp out.txt page.1
    for option in $(grep -oE '^  --[a-z0-9-]+' help.txt); do
        sed 's/\\//g' page.1 | grep -q -e "fB$option" || complain "the man page of $name lacks $option"
    done
    awk '/^  --/ || /^$/ { n = 0 } { n += gsub(/\(default/, "") } n > 1' help.txt | grep -q . &&
        complain "lockstep $name --help has an option with two defaults"
    awk 'length($0) > 80' help.txt | grep -q . &&
        complain "lockstep $name --help has lines of more than 80 columns: $(awk 'length($0) > 80' help.txt)"
    "$LOCKSTEP" help | grep -q "^  $name " || complain "lockstep help lacks $name"
    grep -q "lockstep-$name(1)" \
        <("$LOCKSTEP" help --man lockstep | sed 's/\\//g; s/ (1)/(1)/') || complain "lockstep.1 lacks $name"
    if command -v groff > /dev/null; then
        warnings=$(groff -man -Tutf8 -ww -z page.1 2>&1)
        [ -z "$warnings" ] || complain "groff about lockstep-$name.1: $warnings"
    fi
done

# On a terminal help fits its width, and goes through a pager; elsewhere neither.
if has_terminal; then
    for columns in 120 50; do
        PAGER=cat on_terminal "stty cols $columns; '$LOCKSTEP' help train" < /dev/null | tr -d '\r' > tty.txt
        awk -v most=$columns 'length($0) > most' tty.txt | grep -q . &&
            complain "help is wider than $columns columns: $(awk -v most=$columns 'length($0) > most' tty.txt)"
        grep -q -- '--weight-decay X' tty.txt || complain "help at $columns columns: $(head -20 tty.txt)"
        [ $columns = 50 ] || awk 'length($0) > 80' tty.txt | grep -q . || complain "help uses 80 of $columns columns"
    done
    on_terminal "PAGER='sed s/^/paged:/' '$LOCKSTEP' help train" < /dev/null | grep -q '^paged:Usage: lockstep train' ||
        complain "help does not use PAGER"
    on_terminal "PAGER='sed s/^/paged:/' '$LOCKSTEP' plan --help" < /dev/null | grep -q '^paged:Usage: lockstep plan' ||
        complain "--help does not use PAGER"
    on_terminal "PAGER=/nothing/here '$LOCKSTEP' help train" < /dev/null | grep -q '^Usage: lockstep train' ||
        complain "no help with a PAGER that does not exist"
    on_terminal "PAGER='head -1' '$LOCKSTEP' help train && echo done" < /dev/null | tr -d '\r' | grep -qx done ||
        complain "a pager that ends early fails the command"
    on_terminal "unset PAGER; '$LOCKSTEP' help" < /dev/null | grep -q 'Usage: lockstep COMMAND' ||
        complain "no help without PAGER"
fi
PAGER='sed s/^/paged:/' "$LOCKSTEP" help train | grep -q '^paged:' && complain "a pager in a pipe"

# Plans fit 80 columns.
for given in "--model cnn -n 4" "--model resnet20 -n 6 --nnodes 2" "--model gpt -n 2"; do
    # shellcheck disable=SC2086
    "$LOCKSTEP" plan $given --data synthetic > out.txt 2> err.txt || complain "plan $given: $(cat err.txt)"
    awk 'length($0) > 80' out.txt | grep -q . &&
        complain "plan $given is wider than 80 columns: $(awk 'length($0) > 80' out.txt)"
    tr -s '\n ' '  ' < out.txt | grep -q 'bucket 0: .* into backward, in flight .* critical path' ||
        complain "plan $given: $(cat out.txt)"
done

# JSON that another program can parse.
if command -v python3 > /dev/null; then
    "$LOCKSTEP" info --json | python3 -c '
import json, os, sys
info = json.load(sys.stdin)
assert info["isa"] in info["isas_available"] and set(info["isas_available"]) <= set(info["isas_built"]), info
assert info["cores_allowed"] == len(os.sched_getaffinity(0)), info
assert info["memory_bytes"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), info' ||
        complain "info --json is incorrect"
fi
LOCAL_WORLD_SIZE=1000 "$LOCKSTEP" info --json | grep -q '"threads": 1,' ||
    complain "LOCAL_WORLD_SIZE does not divide the threads"

# A configuration file: the same keys, file and line in every error, and the command line takes precedence.
if echo "$names" | grep -qx train; then
    conf() { printf "$1" > c.conf; }
    conf 'batch = 0\n'; expect 2 "c.conf:1: batch: 0 is out of range" train --config c.conf
    conf '# x\n\n  epoch = 3 # y\n'; expect 2 "c.conf:3: unknown option 'epoch'; did you mean 'epochs'" train --config \
        c.conf
    conf 'batch\n'; expect 2 "c.conf:1: expected .name = value., found 'batch'" train --config c.conf
    conf 'batch = 8\nbatch = 9\n'; expect 2 "c.conf:2: batch is already set on line 1" train --config c.conf
    conf 'config = d.conf\n'; expect 2 "c.conf:1: a configuration file cannot include another" train --config c.conf
    conf 'json = perhaps\n'; expect 2 "c.conf:1: json: 'perhaps' is neither true nor false" train --config c.conf
    conf 'lr = fast\n'; expect 2 "c.conf:1: lr: 'fast' is not a number" train --config c.conf
    conf 'lr = nan\n'; expect 2 "c.conf:1: lr: 'nan' is not a number" train --config c.conf
    conf 'model = vgg\n'; expect 2 "c.conf:1: model: 'vgg' is not one of" train --config c.conf
    conf 'save =\n'; expect 2 "c.conf:1: save: the value is empty" train --config c.conf
    printf 'lr = 1\0\n' > c.conf; expect 2 "c.conf contains a NUL byte" train --config c.conf
    head -c 2000000 /dev/zero | tr '\0' '#' > c.conf; expect 2 "c.conf is too long" train --config c.conf
    expect 2 "absent.conf: cannot open: No such file" train --config absent.conf
    expect 2 "cannot read: Is a directory" train --config .
    # A file must be valid even if the command line takes precedence.
    conf 'batch = 0\n'; expect 2 "c.conf:1: batch" train --batch 8 --config c.conf

    lines='model = mlp\r\ndata = synthetic:64,count=64\r\nbatch = 16\r\nsteps = 2\nthreads=1\n'
    conf "$lines"'eval-every = -1\njson = true\n'
    "$LOCKSTEP" train --config c.conf 2> /dev/null | tail -1 | grep -q '"step": 2' ||
        complain "steps = 2 of the file is ignored"
    "$LOCKSTEP" train --steps 3 --config c.conf 2> /dev/null | tail -1 | grep -q '"step": 3' ||
        complain "--steps before --config has no precedence"
    "$LOCKSTEP" train --config=c.conf --steps=3 2> /dev/null | tail -1 | grep -q '"step": 3' ||
        complain "--steps=3 after --config has no precedence"
    [ -z "$("$LOCKSTEP" train --config c.conf --json=false 2> /dev/null | grep '^{')" ] ||
        complain "--json=false does not override json = true"

    # Plain lines in a pipe; on a terminal a progress line, with colours unless NO_COLOR is set.
    "$LOCKSTEP" train --config c.conf > all.txt 2>&1
    grep -q $'\033' all.txt && complain "escape sequences in a pipe"
    grep -q $'\r' all.txt && complain "carriage returns in a pipe"
    grep -Eq 'step [0-9]+/2 +loss [0-9.]+' all.txt || complain "no plain progress lines in a pipe: $(cat all.txt)"
    # The first step at once, then by time, however many steps there are.
    "$LOCKSTEP" train --config c.conf --steps 1000000000000 > all.txt 2>&1 & trainer=$!
    wait_until 60 has_lines 3 '^train  step ' all.txt
    kill $trainer
    wait $trainer
    [ "$(grep -c '^train  step ' all.txt)" -ge 3 ] && grep '^train ' all.txt | head -1 | grep -q 'step 1/' ||
        complain "no plain lines by time: $(cat all.txt)"
    # After each epoch its mean training loss: of all ranks, with and without a test set, in 80 columns.
    for ranks in 1 2; do
        "$LOCKSTEP" train --config c.conf --steps 0 --epochs 2 -n $ranks --log "epochs$ranks.jsonl" > all.txt 2>&1 ||
            complain "two epochs: $(cat all.txt)"
        [ "$(grep -c '^epoch [12], step [48]: train loss [0-9.]*$' all.txt)" = 2 ] ||
            complain "no epoch lines without an evaluation, $ranks ranks: $(cat all.txt)"
        grep -o '^epoch.*' all.txt > "lines$ranks.txt"
    done
    [ "$(grep -c '"event": "step".*"samples_per_s": [0-9]' epochs1.jsonl)" = 8 ] &&
        ! grep -q images_per_s epochs1.jsonl || complain "the speed of a table in the log: $(cat epochs1.jsonl)"
    cmp -s lines1.txt lines2.txt || complain \
        "the mean training losses of 1 and 2 ranks differ: $(cat lines1.txt lines2.txt)"
    "$LOCKSTEP" train --config c.conf --steps 0 --epochs 2 --eval-every 0 > all.txt 2>&1
    [ "$(grep -cE '^epoch [12], step [48]: train loss [0-9.]+, test loss [0-9.]+, accuracy [0-9.]+ %' all.txt)" = 2 ] ||
        complain "no epoch lines with an evaluation: $(cat all.txt)"
    grep -v '^{' all.txt | awk 'length($0) > 80' | grep -q . && complain "lines of more than 80 columns: $(cat all.txt)"
    if has_terminal; then
        on_terminal "stty cols 40; '$LOCKSTEP' train --config c.conf --steps 0 --epochs 2 --eval-every 0" < /dev/null |
            tr '\r' '\n' | sed 's/\x1b\[[0-9;]*[A-Za-z]//g' > tty.txt
        grep -q '^epoch 2, step 8: train loss' tty.txt && ! awk 'length($0) > 40' tty.txt | grep -v '^{' | grep -q . ||
            complain "epoch lines at 40 columns: $(cat tty.txt)"
        on_terminal "'$LOCKSTEP' train --config c.conf" < /dev/null > tty.txt
        grep -q $'\033\[32m' tty.txt || complain "no colours on a terminal"
        NO_COLOR=1 on_terminal "'$LOCKSTEP' train --config c.conf" < /dev/null > tty.txt
        grep -q $'\033\[[0-9]*m' tty.txt && complain "colours despite NO_COLOR"
        # The progress line is never wider than the terminal, for any numbers, alone and behind a launcher; parts that
        # do not fit are omitted completely.
        long="--model mlp --threads 1 --steps 1000000000000000 --eval-every -1"
        for columns in 80 50 24 9; do
            for ranks in "" "-n 2"; do
                train_until 3 $columns $ranks $long
                [ -s shown.txt ] || complain "no progress line at $columns columns $ranks: $(cat -v tty.txt | head -5)"
                awk -v most=$((columns - 1)) 'length($0) > most' shown.txt | grep -q . &&
                    complain "wider than $columns columns $ranks: $(head -3 shown.txt)"
                pattern='^train (\[[= ]+\] )?step [0-9]+/1000000000000000  loss [0-9.]+  '
                pattern+='(.* )?(samples/s|left [0-9]+ days|left --:--)'
                [ "$columns" = 80 ] && ! grep -qE "$pattern" shown.txt && complain "80 columns: $(head -3 shown.txt)"
                sed 's/^.*step [0-9]*\/10*//; s/  loss [0-9.]*//; s/  [0-9.]*[MG]\{0,1\} samples\/s//
                    s/  left [-0-9:]*\( days\)\{0,1\}//; s/  accuracy [0-9.]* %//
                    s/  slowest: rank [01], +[0-9.]* ms ([a-z]*)//' shown.txt > rest.txt
                [ "$columns" -lt 40 ] || ! grep -q . rest.txt ||
                    complain "truncated parts at $columns columns $ranks: $(grep . rest.txt | head -3)"
            done
        done
        # Metrics that do not fit are omitted one by one.
        train_until 5 100 --model gpt --layers 1 --heads 1 --width 16 --context 16 --batch 2 --threads 1 --steps \
            1000000 --eval-every -1
        grep -q '  accuracy [0-9.]* %' shown.txt || complain "no metric at 100 columns: $(head -3 shown.txt)"
        pattern='  (loss [0-9.]+|[0-9.]+M? tokens/s|left [-0-9:]+( days)?|accuracy [0-9.]+ %|perplexity [0-9.e+]+|'
        pattern+='mfu [0-9.e-]+)$'
        grep -vE "$pattern" shown.txt | grep -q . && complain "a part of a metric: $(tail -3 shown.txt)"
    fi
fi

# The slowest rank is named if and only if the others wait for it more than a tenth of the step, according to the log.
if command -v script > /dev/null && command -v python3 > /dev/null; then
    NO_COLOR=1 train_until 5 250 -n 2 --model cnn --data synthetic:3x32x32,count=96 --batch 3 --threads 1 --steps \
        1000000 --eval-every -1 --log late.jsonl
    python3 - <<'P' || complain "the slowest rank: $(tr '\r' '\n' < tty.txt | tail -3)"
import json, re
steps = {e["step"]: e for e in map(json.loads, open("late.jsonl")) if e["event"] == "step"}
lines = re.finditer(r"step (\d+)/\d+  loss [^\r\n]*", open("tty.txt", errors="replace").read())
seen = 0
for line in lines:
    e, named = steps[int(line.group(1))], "slowest: rank" in line.group(0)
    wanted = e["late_s"] >= 0.0005 and e["late_s"] > 0.1 * e["seconds"]
    assert named == wanted, (line.group(0), e)
    assert "late " not in line.group(0), line.group(0)
    seen += 1
assert seen > 3, seen
P
fi

# A download shows its bytes: plain lines, and a progress line on a terminal.
if command -v python3 > /dev/null && "$LOCKSTEP" info | grep -q 'libcurl *[0-9a-z]*/'; then
    mkdir served
    truncate -s 9912422 served/train-images-idx3-ubyte.gz # of MNIST's length, not MNIST: rejected after the download
    python3 - served > server.txt 2> /dev/null <<'P' &
import functools, http.server, sys
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=sys.argv[1])
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
print(server.server_address[1], flush=True)
server.serve_forever()
P
    server=$!
    wait_until 20 test -s server.txt
    get="data get mnist --dir got --url http://127.0.0.1:$(cat server.txt)"
    "$LOCKSTEP" $get > all.txt 2>&1 && complain "a file that is not MNIST's was accepted"
    grep -qE '^mnist  [0-9.]+ of 11.1 MiB' all.txt || complain "no bytes during a download: $(cat all.txt)"
    grep -q '^mnist.*step' all.txt && complain "a download has no steps: $(cat all.txt)"
    [ "$(grep -c ' MiB' all.txt)" -le 3 ] || complain "too many lines: $(cat all.txt)"
    if command -v script > /dev/null; then
        NO_COLOR=1 TERM=xterm script -qec "stty cols 80; '$LOCKSTEP' $get" /dev/null < /dev/null > tty.txt
        grep -qaE 'mnist \[[= ]*\] [0-9.]+ of 11.1 MiB' tty.txt || complain "no bytes on a terminal: $(cat -v tty.txt)"
    fi
    kill "$server"
    wait "$server" 2> /dev/null
else
    echo "skip: no libcurl or no python3 to download with"
fi

# Results that cannot be written are a failure.
"$LOCKSTEP" info > /dev/full 2> err.txt
[ $? = 1 ] && grep -q 'cannot write to standard output: No space' err.txt || complain "info > /dev/full: $(cat err.txt)"
finish $wrong
