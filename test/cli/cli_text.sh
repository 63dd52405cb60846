#!/usr/bin/env bash
# cli_text.sh - texts at the command: each kind of text data trains, with the same numbers at any number of ranks and
# after a stop in the middle of an epoch; a checkpoint opens its data again; `data tokenize`; mistakes get one sentence
# and exit status 2.
# ctest: timeout 400, ranks 3
set -u
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"

gpt="--model gpt --layers 1 --heads 2 --width 16 --context 12 --batch 12 --epochs 1 --seed 3 --threads 1"
# refuse PATTERN DATA [OPTION…]: `train` refuses the data in one line with status 2, with one rank and with two.
refuse() {
    local pattern=$1 data=$2
    shift 2
    for ranks in "" "-n 2"; do
        # shellcheck disable=SC2086
        expect 2 "^lockstep train: .*$pattern" "$LOCKSTEP" train $ranks $gpt "$@" --data "$data"
        [ "$(wc -l < err.txt)" = 1 ] || complain "$data $ranks: more than one line: $(cat err.txt)"
    done
}
# same_everywhere NAME OPTION…: a run with --reproducible ends in the same weights with 1, 2 and 3 ranks, and when it is
# stopped in the middle of an epoch and continued with another number of ranks.
same_everywhere() {
    local name=$1 first other
    shift
    first=$("$LOCKSTEP" train "$@" --reproducible --json 2> err.txt | field hash)
    [ -n "$first" ] || { complain "$name: $(cat err.txt)"; return; }
    for ranks in 2 3; do
        other=$("$LOCKSTEP" train -n $ranks "$@" --reproducible --json 2> err.txt | field hash)
        [ "$other" = "$first" ] || complain "$name: $ranks ranks gave $other, one rank $first; $(cat err.txt)"
    done
    "$LOCKSTEP" train -n 2 "$@" --reproducible --steps 2 --save "$name" > /dev/null 2> err.txt ||
        complain "$name: $(cat err.txt)"
    other=$("$LOCKSTEP" train -n 3 "$@" --reproducible --save "$name" --resume auto --json 2> err.txt | field hash)
    [ "$other" = "$first" ] || complain \
        "$name: resumed in the middle of an epoch: $other, otherwise $first; $(cat err.txt)"
}
# GPT-2's alphabet of bytes, each a token, and <|endoftext|>: a byte-level BPE without merges.
make_tokenizer() {
    local byte letter=256
    printf '{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":256,"content":"<|endoftext|>",'
    printf '"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],"normalizer":null,'
    printf '"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},'
    printf '"post_processor":null,'
    printf '"decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},'
    printf '"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,'
    printf '"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":false,"vocab":{'
    for ((byte = 0; byte < 256; byte++)); do
        if ((byte >= 33 && byte <= 126 || byte >= 161 && byte <= 172 || byte >= 174)); then printf '"\\u%04x":%d,' \
            $byte $byte
        else printf '"\\u%04x":%d,' $((letter++)) $byte; fi
    done
    printf '"<|endoftext|>":256},"merges":[]}}'
}

# ---- training ----

make_tokenizer > tokenizer.json
for ((i = 0; i < 40; i++)); do echo "line $i: the quick brown fox jumps over $((i * 7919 % 101)) dogs"; done > input.txt
awk '{ printf "{\"id\": %d, \"body\": \"%s\", \"kind\": \"%s\"}\n", NR, $0, NR % 3 ? "odd" : "even" }' input.txt > \
    corpus.jsonl
mkdir folder
head -n 20 input.txt > folder/a.txt
tail -n 20 input.txt > folder/b.txt
# shellcheck disable=SC2086
{
    same_everywhere windows $gpt --data text:input.txt --tokenizer char --steps 12
    same_everywhere packed $gpt --data jsonl:corpus.jsonl --text-field body --tokenizer tokenizer.json
    same_everywhere of-folder $gpt --model llama --data text:folder --tokenizer .
    same_everywhere classes $gpt --model encoder --data jsonl:corpus.jsonl --text-field body --label kind --tokenizer \
        byte --context 60 --epochs 3
    expect 0 "" "$LOCKSTEP" data tokenize corpus.jsonl --field body --tokenizer tokenizer.json --out tokens.bin
    grep -q "tokens.bin: [0-9]* tokens (u16) from 40 documents, [0-9]* bytes of text; .*tokens/s" out.txt ||
        complain "tokenize says: $(cat out.txt)"
    same_everywhere tokens $gpt --data tokens:tokens.bin --packing documents --holdout 0.1

    # --holdout 0 holds out nothing, though a tenth is the default of a text: of 40 lines with classes all are trained
    # on.
    for data in "text:input.txt --tokenizer char" "jsonl:corpus.jsonl --text-field body --tokenizer tokenizer.json" \
        "jsonl:corpus.jsonl --text-field body --label kind --tokenizer byte --context 60 --model encoder"; do
        expect 0 "has no test set, so nothing is evaluated" "$LOCKSTEP" train $gpt --steps 2 --data $data --holdout 0
    done
    expect 0 "" "$LOCKSTEP" train $gpt --model encoder --data jsonl:corpus.jsonl --text-field body --label kind \
        --tokenizer byte --context 60 --holdout 0 --batch 40 --epochs 1 --log all.jsonl --save all
    grep -q '"event": "epoch".*"samples": 40' all.jsonl || complain "an epoch of all 40 lines: $(cat all.jsonl)"
    expect 2 "has no test set: --holdout" "$LOCKSTEP" eval --load all

    # The same tokens from a file of tokens: the same weights. And what llm.c's and nanoGPT's readers see: the header,
    # then u16.
    a=$("$LOCKSTEP" train $gpt --data jsonl:corpus.jsonl --text-field body --tokenizer tokenizer.json --json \
        2> err.txt | field hash)
    documents="--tokenizer tokenizer.json --packing documents --holdout 0.1"
    b=$("$LOCKSTEP" train $gpt --data tokens:tokens.bin $documents --json 2> err.txt | field hash)
    [ -n "$a" ] && [ "$a" = "$b" ] || complain "jsonl gave '$a', tokens '$b': $(cat err.txt)"
    [ "$(od -An -tu4 -N12 tokens.bin | tr -s ' ')" = " 20240520 1 $((($(wc -c < tokens.bin) - 1024) / 2))" ] ||
        complain "the header is $(od -An -tu4 -N12 tokens.bin)"
    tail -c +1025 tokens.bin > plain.bin
    b=$("$LOCKSTEP" train $gpt --data tokens:plain.bin $documents --json 2> err.txt | field hash)
    [ "$a" = "$b" ] || complain "a plain file gave '$b', not '$a': $(cat err.txt)"
    "$LOCKSTEP" data tokenize corpus.jsonl --field body --tokenizer tokenizer.json --out wide.bin --type u32 > \
        /dev/null 2>&1
    for data in "tokens:wide.bin" "tokens:wide.u32" "tokens:wide.raw --token-type u32"; do
        tail -c +1025 wide.bin | tee wide.u32 > wide.raw
        b=$("$LOCKSTEP" train $gpt --data $data $documents --json 2> err.txt | field hash)
        [ "$a" = "$b" ] || complain "$data gave '$b', not '$a': $(cat err.txt)"
    done

    # Without a tokenizer the model's vocabulary decides the type of a plain file.
    a=$("$LOCKSTEP" train $gpt --data tokens:wide.u32 --vocabulary 70000 --steps 2 --json 2> err.txt | field hash)
    b=$("$LOCKSTEP" train $gpt --data tokens:wide.raw --vocabulary 70000 --steps 2 --json 2> err.txt | field hash)
    [ -n "$a" ] && [ "$a" = "$b" ] || complain \
        "a plain file of u32 for a vocabulary of 70000 gave '$b', not '$a': $(cat err.txt)"
    # JSONL files below a directory of texts have the field that is named.
    mkdir lines && cp corpus.jsonl lines
    a=$("$LOCKSTEP" train $gpt --data jsonl:corpus.jsonl --text-field body --tokenizer tokenizer.json --json \
        2> err.txt | field hash)
    b=$("$LOCKSTEP" train $gpt --data text:lines --text-field body --tokenizer tokenizer.json --json 2> err.txt |
        field hash)
    [ -n "$a" ] && [ "$a" = "$b" ] || complain "a directory of JSONL gave '$b', not '$a': $(cat err.txt)"

    # A checkpoint opens its data as it was opened for training; other data is opened with its tokenizer and context.
    expect 0 "" "$LOCKSTEP" train $gpt --data jsonl:corpus.jsonl --text-field body --tokenizer tokenizer.json --save \
        run --json
    loss=$(field loss < out.txt)
    expect 0 "" "$LOCKSTEP" eval --load run --json
    [ -n "$loss" ] && [ "$(field loss < out.txt)" = "$loss" ] || complain "eval: $(cat out.txt err.txt), not $loss"
    expect 0 "" "$LOCKSTEP" eval --load run --data text:folder --json
    # Characters keep their numbers: those of the text that the model was trained on.
    expect 0 "" "$LOCKSTEP" train $gpt --data text:input.txt --tokenizer char --steps 3 --save chars
    head -n 8 input.txt > part.txt
    expect 0 "" "$LOCKSTEP" eval --load chars --data text:input.txt,part.txt --json
    loss=$(field loss < out.txt)
    expect 0 "" "$LOCKSTEP" eval --load chars --data text:part.txt,part.txt --json
    [ -n "$loss" ] && [ "$(field loss < out.txt)" = "$loss" ] ||
        complain "the same text, but not the same characters: $(cat out.txt)"
    cp chars/tokenizer.json chars.json
    for ranks in 1 2; do
        expect 0 "" "$LOCKSTEP" train -n $ranks --save chars --resume auto --steps $((3 + ranks)) --data text:part.txt
        cmp -s chars/tokenizer.json chars.json || complain "resumed with other text by $ranks ranks: other characters"
    done
    echo "ÄÖÜ ÄÖÜ" >> part.txt
    expect 2 "part.txt: .*U\+00C4" "$LOCKSTEP" eval --load chars --data text:input.txt,part.txt
}

# ---- data tokenize ----

expect 0 "" "$LOCKSTEP" data tokenize input.txt folder corpus.jsonl --field body --tokenizer byte --out all.bin --json
[ "$(field documents < out.txt)" = 43 ] && [ "$(field type < out.txt)" = u16 ] ||
    complain "tokenize --json: $(cat out.txt)"
[ "$(field tokens < out.txt)" = "$((3 * $(wc -c < input.txt) - 40))" ] ||
    complain "bytes of the texts: $(cat out.txt), $(wc -c < input.txt)"
expect 0 "" "$LOCKSTEP" data tokenize input.txt --tokenizer char --out chars.bin
[ -s chars.bin.tokenizer.json ] || complain "no vocabulary beside the characters"
# shellcheck disable=SC2086
expect 0 "" "$LOCKSTEP" train $gpt --data tokens:chars.bin --tokenizer chars.bin.tokenizer.json --steps 2
cp tokens.bin old.bin
expect 2 "corpus.jsonl: line 1 has no field 'text': it has 'id', 'body', 'kind'; choose the field with --field" \
    "$LOCKSTEP" data tokenize input.txt corpus.jsonl --tokenizer byte --out old.bin
cmp -s tokens.bin old.bin || complain "a failure changed the file that was there"
expect 2 "is one of the texts" "$LOCKSTEP" data tokenize folder --tokenizer byte --out folder/a.txt
expect 2 "nowhere.txt" "$LOCKSTEP" data tokenize nowhere.txt --tokenizer byte --out new.bin
expect 2 "--tokenizer is missing" "$LOCKSTEP" data tokenize input.txt --out new.bin
expect 2 "--out is missing" "$LOCKSTEP" data tokenize input.txt --tokenizer byte
expect 2 "input.txt: cannot create the directory: a file with that name exists" "$LOCKSTEP" data tokenize input.txt \
    --tokenizer byte --out input.txt/new.bin
expect 0 "" "$LOCKSTEP" data tokenize input.txt --tokenizer byte --out no/such/bytes.bin
[ -s no/such/bytes.bin ] || complain "data tokenize does not create the directory of --out"
expect 2 "--dir applies only to .data get" "$LOCKSTEP" data tokenize input.txt --tokenizer byte --out new.bin --dir x
expect 2 "--out applies only to .data tokenize" "$LOCKSTEP" data get mnist --out x
expect 2 "did you mean .data tokenize" "$LOCKSTEP" data tokenise input.txt
(
    ulimit -f 2
    expect 1 "new.bin: cannot write: File too large" "$LOCKSTEP" data tokenize input.txt input.txt --tokenizer byte \
        --out new.bin
    exit "$wrong"
) || wrong=$((wrong + 1))
for left in new.bin* *.tmp.*; do [ -e "$left" ] && complain "$left is left after failures"; done

# ---- mistakes ----

# Without a tokenizer a text is read as bytes, which is said once.
a=$("$LOCKSTEP" train $gpt --data text:input.txt --steps 2 --tokenizer byte --json 2> err.txt | field hash)
b=$("$LOCKSTEP" train -n 2 $gpt --data text:input.txt --steps 2 --reproducible --json 2> err.txt | field hash)
[ "$(grep -c 'text:input.txt is read as bytes, because no tokenizer was chosen' err.txt)" = 1 ] ||
    complain "the tokenizer that was taken is not said once: $(cat err.txt)"
b=$("$LOCKSTEP" train $gpt --data text:input.txt --steps 2 --json 2> err.txt | field hash)
[ -n "$a" ] && [ "$a" = "$b" ] || complain "without a tokenizer: $b, with byte $a; $(cat err.txt)"

: > empty.txt
refuse 'empty.txt is empty' text:empty.txt --tokenizer char
refuse 'empty.txt is empty' text:empty.txt --tokenizer byte
refuse 'empty.txt is empty' tokens:empty.txt --vocabulary 100
echo "short" > short.txt
refuse 'short.txt has 6 tokens, 5 of them for training: a context of 12 needs at least 13; use a shorter --context' \
    text:short.txt --tokenizer char
mkdir mixed
cp input.txt tokens.bin mixed
refuse 'mixed/tokens.bin contains a NUL byte, so it is not text' text:mixed --tokenizer tokenizer.json
refuse 'jsonl:corpus.jsonl needs a tokenizer: byte, char' jsonl:corpus.jsonl --text-field body
refuse 'nowhere.txt' text:nowhere.txt --tokenizer char
refuse 'packed documents need an end token, which byte does not have: --packing windows' jsonl:corpus.jsonl \
    --text-field body --tokenizer byte
refuse "corpus.jsonl: line 1 has no field 'text': it has 'id', 'body', 'kind'; choose the field with --text-field" \
    jsonl:corpus.jsonl --tokenizer tokenizer.json
refuse "corpus.jsonl: line 1 has no field 'label'" jsonl:corpus.jsonl --text-field body --label label --tokenizer byte \
    --model encoder
sed '7s/}$//' corpus.jsonl > broken.jsonl
refuse 'broken.jsonl: line 7, byte [0-9]*: expected' jsonl:broken.jsonl --text-field body --tokenizer tokenizer.json
printf 'x' >> plain.bin
refuse 'plain.bin has [0-9]* bytes, which is not a whole number of 2-byte tokens' tokens:plain.bin --vocabulary 300
{ printf '\x88\xd8\x34\x01\x02\0\0\0'; head -c 2000 /dev/zero; } > version.bin
refuse "version.bin has an llm.c header 20240520 of version 2" tokens:version.bin --vocabulary 300
refuse 'tokenized with a vocabulary of 257, but the tokenizer byte has one of 256' tokens:tokens.bin --tokenizer byte
{ head -c 1064 tokens.bin; printf '\x01\x01'; tail -c +1067 tokens.bin; } > beyond.bin
refuse 'beyond.bin: token 20 is 257, but the vocabulary has 257 tokens' tokens:beyond.bin --batch 2000 --holdout 0.1
printf '\0\0\0\200%.0s' {1..100} > large.u32
refuse 'large.u32: token [0-9]* is 2147483648, but ids must be below 2\^31' tokens:large.u32 --vocabulary 300 \
    --holdout 0.1
refuse 'has its own validation set' tokens:tokens.bin,tokens.bin --holdout 0.1
refuse '--packing applies only to --data text, jsonl, tokens' synthetic --packing windows
refuse '--text-field applies only to --data jsonl' text:input.txt --text-field body --tokenizer char
refuse '--token-type applies only to --data tokens' text:input.txt --token-type u16 --tokenizer char
refuse 'unknown data set: txt \(did you mean text\?\)' txt:input.txt

exit $((wrong > 0))
