#!/bin/sh
# Builds, times and runs the engines of this archive, and writes one file:
#
#     sh measure.sh [RESULT.tar]
#
# Send that file back: `trtcal report RUN --measured RESULT.tar` puts it into the report.
# It takes trtexec (TRTEXEC=/path/to/trtexec names it), else TensorRT's package of python3.
# Written for POSIX sh; needs tar.
set -u
start=$PWD
cd "$(dirname "$0")" || exit 4
result=${1:-measured.tar}
case $result in /*) ;; *) result=$start/$result ;; esac
. ./settings.sh

fail() {
    echo "error: $1" >&2
    echo "hint: $2" >&2
    exit "$3"
}

find_trtexec() {
    named=${TRTEXEC:-trtexec}
    case $named in /*) ;; */*) named=$start/$named ;; esac
    for each in "$named" /usr/src/tensorrt/bin/trtexec /opt/tensorrt/bin/trtexec \
        /usr/local/tensorrt/bin/trtexec; do
        if command -v "$each" >/dev/null 2>&1; then
            echo "$each"
            return
        fi
    done
}

has() {
    case $help in *"$1"*) return 0 ;; esac
    return 1
}

precision_of() { # q: the model has Q/DQ, h: it has float16
    if has --stronglyTyped && has --int8; then
        echo --stronglyTyped # TensorRT 9 and 10 have flags of precision; 11 has only types
    elif has --int8; then
        case $1 in *q*) echo --int8 ;; esac
        case $1 in *h*) echo --fp16 ;; esac
    fi
}

model_of() {
    case $help in
    *"TensorRT v8"*) [ -f "models/$1-trt8.onnx" ] && echo "models/$1-trt8.onnx" && return ;;
    esac
    echo "models/$1.onnx"
}

run() { # LOG ARGUMENTS...
    log=$1
    shift
    echo "$number: trtexec $*"
    "$trtexec" "$@" >"$log" 2>&1 || echo "warning: this ended with an error; its log goes along"
}

build() {
    mkdir -p "results/$number"
    # shellcheck disable=SC2046,SC2086  # words of options
    run "results/$number/build.log" --onnx="$(model_of "$number")" --saveEngine="engine-$number" \
        --profilingVerbosity=detailed --skipInference --noTF32 $(precision_of "$kind") $SPAN
}

time_it() { # ROUND
    # shellcheck disable=SC2086
    run "results/$number/times-$1.log" --loadEngine="engine-$number" $BATCH $TRANSFERS \
        --warmUp=500 --iterations=100 --duration=5 --exportTimes="results/$number/times-$1.json"
}

look_inside() {
    # shellcheck disable=SC2086
    run "results/$number/profile.log" --loadEngine="engine-$number" $BATCH --dumpProfile \
        --separateProfileRun --profilingVerbosity=detailed \
        --exportProfile="results/$number/profile.json" \
        --exportLayerInfo="results/$number/layers.json"
    # shellcheck disable=SC2086
    run "results/$number/outputs.log" --loadEngine="engine-$number" $FEW $INPUTS $TRANSFERS \
        --warmUp=0 --iterations=1 --duration=0 --exportOutput="results/$number/output.json"
}

debug() { # tensors inside: TensorRT 10.12 and later
    has --saveAllDebugTensors || return 0
    place=results/$number/debug
    mkdir -p "$place"
    # shellcheck disable=SC2046,SC2086
    run "results/$number/debug-build.log" --onnx="$(model_of "$number")" \
        --saveEngine="$place/engine" --skipInference --noTF32 --markUnfusedTensorsAsDebugTensors \
        $(precision_of "$kind") $SPAN
    ln -s ../../../inputs "$place/inputs"
    # shellcheck disable=SC2086
    (cd "$place" && run ../debug.log --loadEngine=engine $FEW $INPUTS --warmUp=0 --iterations=1 \
        --duration=0 --saveAllDebugTensors=numpy)
    rm -f "$place/inputs" "$place/engine"
}

each() { # COMMAND ENGINES...
    command=$1
    shift
    for engine in "$@"; do
        number=${engine%%:*} kind=${engine#*:}
        $command
    done
}

digests() {
    for tool in sha256sum 'shasum -a 256'; do
        $tool models/* inputs/* 2>/dev/null && return
    done
    fail "there is neither sha256sum nor shasum" "install coreutils" 4
}

by_trtexec() {
    help=$("$trtexec" --help 2>&1)
    TRANSFERS= # which 11 and later leave out by default, and take a CUDA graph
    for option in --includeDataTransfers --noCudaGraph; do
        has $option && TRANSFERS="$TRANSFERS $option"
    done
    backwards=
    for engine in $ENGINES; do backwards="$engine $backwards"; done
    # shellcheck disable=SC2086
    {
        each build $ENGINES
        each "time_it 1" $ENGINES # in turns and back again, so that a drift hits all alike
        each "time_it 2" $backwards
        each look_inside $ENGINES
        each debug $ENGINES
    }
}

rm -rf results engine-*
mkdir results || exit 4
digests >results/digests.txt
cp -R measure.json inputs results/
trtexec=$(find_trtexec)
if [ -n "$trtexec" ]; then
    by_trtexec
elif python3 -c 'import tensorrt' 2>/dev/null; then
    PYTHONPATH=worker.pyz python3 -m trtcal_worker.measuring tensorrt || exit 3
else
    fail "there is neither trtexec nor TensorRT's package of python3" "set TRTEXEC to its path" 4
fi
rm -rf engine-*
(cd results && tar -cf "$result" ./*) || fail "tar wrote no $result" "free disk space" 4
echo "wrote $result"
