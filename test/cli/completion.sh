#!/usr/bin/env bash
# completion.sh - the scripts of `lockstep completion` in real shells: bash, and zsh and fish where they are installed.
# Every option of every command's help is offered, so are the choices of options, files where a file is expected, data
# sets and files behind their prefix, and what follows `lockstep run`. They are generated from the option tables, so
# only the shells' own syntax can be wrong.
# ctest: timeout 240
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
# shellcheck source=test/terminal.bash
. "$SOURCE_DIR/test/terminal.bash"
wrong=0
complain() { echo "$*" >&2; wrong=1; }
for shell in bash zsh fish; do "$LOCKSTEP" completion $shell > $shell.txt 2> err.txt ||
    complain "completion $shell: $(cat err.txt)"; done
"$LOCKSTEP" completion tcsh > out.txt 2> err.txt
[ $? = 2 ] && grep -q "no completion for 'tcsh': expected bash, zsh or fish" err.txt ||
    complain "completion tcsh: $(cat err.txt)"
mkdir files pictures
cp bash.txt files/lockstep && cp zsh.txt files/_lockstep
touch prices.csv 'two words.csv'

# What is offered for a command line: one of the words must be WORD; for none it is -.
cat > cases.txt <<'T'
lockstep tr|train
lockstep --vers|--version
lockstep train --label-smo|--label-smoothing
lockstep train --optimizer sg|sgd
lockstep train --optimizer=sg|sgd
lockstep train --model resnet1|resnet18
lockstep train --model pric|prices.csv
lockstep train --model=pric|prices.csv
lockstep train --config pric|prices.csv
lockstep train --resume aut|auto
lockstep train --resume pict|pictures
lockstep train --tokenizer by|byte
lockstep train -n gp|gpu
lockstep train --steps pric|-
lockstep train --data fash|fashion-mnist
lockstep train --data cs|csv:
lockstep train --data csv:pric|prices.csv
lockstep train --freeze a --free|--freeze
lockstep predict --load pict|pictures
lockstep predict pric|prices.csv
lockstep data tok|tokenize
lockstep bench gene|generate
lockstep help gene|generate
lockstep completion fi|fish
lockstep run --nproc|--nproc-per-node
lockstep run -n gp|gpu
lockstep run -n 2 lockstep train --label-smo|--label-smoothing
lockstep run --no-pin -n 2 -- lockstep train --optimizer sg|sgd
T

# bash breaks words at = and : as well.
cat > bash.bash <<'T'
source ./files/lockstep
offer() { # LINE: prints what is offered, one a line
    local line=$1 word
    line=${line//=/ = } line=${line//:/ : }
    read -ra COMP_WORDS <<< "$line"
    case $1 in *' ' | *: | *=) [ "${1: -1}" != ' ' ] || COMP_WORDS+=("") ;; esac
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    COMPREPLY=()
    _lockstep 2>&1
    for word in "${COMPREPLY[@]}"; do echo "$word"; done
}
"$@"
T
cat > all_cases.bash <<'T'
source ./bash.bash true
while IFS='|' read -r line expected; do
    got=$(offer "$line" | tr '\n' '|')
    case $expected in
    -) [ -z "$got" ] ;;
    *) case "|$got" in *"|$expected|"*) ;; *) false ;; esac ;;
    esac || echo "bash: '$line' offers '$got', not $expected"
done < cases.txt
T
bash all_cases.bash > out.txt 2>&1
[ ! -s out.txt ] || complain "$(cat out.txt)"
for name in $("$LOCKSTEP" help --names); do
    bash bash.bash offer "lockstep $name --" | sort > offered.txt
    "$LOCKSTEP" help "$name" | grep -oE '^  --[a-z0-9-]+' | tr -d ' ' | sort > options.txt
    cmp -s offered.txt options.txt || complain "bash: options of $name: $(diff options.txt offered.txt)"
done
bash bash.bash offer 'lockstep train --config tw' | grep -qx 'two words.csv' ||
    complain "bash: a file with a space: $(bash bash.bash offer 'lockstep train --config tw')"

if command -v fish > /dev/null; then
    cat > fish.fish <<'T'
source ./fish.txt
while read -l -d '|' line expected
    set -l got (complete -C $line | string replace -r '\t.*' '' | string replace -r '^--[a-z-]+=(?=.)' '' | \
        string replace -r '^csv:(?=.)' '' | string trim -r -c /)
    if test $expected = -
        test (count $got) = 0; or echo "fish: '$line' offers '$got'"
    else
        contains -- $expected $got; or echo "fish: '$line' offers '$got', not $expected"
    end
end < cases.txt
for name in ($LOCKSTEP help --names)
    set -l offered (complete -C "lockstep $name --" | string replace -r '\t.*' '' | string match -- '--*')
    for option in ($LOCKSTEP help $name | string match -r '^  --[a-z0-9-]+' | string trim)
        contains -- $option $offered; or echo "fish: $name does not offer $option"
    end
end
T
    HOME=$work timeout 100 fish --no-config fish.fish > out.txt 2>&1 || complain "fish: $(cat out.txt)"
    [ ! -s out.txt ] || complain "$(cat out.txt)"
else
    leave_out "there is no fish"
fi

# In zsh on a terminal of its own: a line that has one completion is completed and run, by a function that prints its
# words.
if command -v zsh > /dev/null && zsh -fc 'zmodload zsh/zpty && zpty z true' 2> /dev/null; then
    cat > zsh.zsh <<'T'
zmodload zsh/zpty
zpty shell zsh -f -i
setup="PS1=; unsetopt prompt_sp; stty cols 200; fpath=($PWD/files \$fpath); autoload -Uz compinit; compinit -u -D; "
setup+="lockstep() { print -r -- G''OT:\"\${@[-1]}\":E''ND }; print REA''DY"
zpty -w shell "$setup"
zpty -r shell out '*READY*'
while IFS='|' read -r line expected; do
    [[ $expected != - ]] || continue
    zpty -w shell "$line"$'\t'
    zpty -r shell out '*GOT:*:END*'
    got=${${out##*GOT:}%%:END*}
    [[ $got == (*[=:]|)$expected(/|) ]] || print -r -- "zsh: '$line' becomes '$got', not $expected"
done < cases.txt
zpty -d shell
T
    TERM=xterm timeout 100 zsh -f zsh.zsh > out.txt 2>&1 || complain "zsh: $(cat out.txt)"
    [ ! -s out.txt ] || complain "$(cat out.txt)"
else
    leave_out "there is no zsh with zsh/zpty"
fi
finish $wrong
