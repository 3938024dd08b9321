#!/bin/sh
# A whole run with curl: create it, ask, measure, tell. The "rig" is a formula in awk.
#
#     safebo serve runs.db &
#     sh examples/http/experiment.sh http://127.0.0.1:8000 [experiments]
#
# With a token: export SAFEBO_OPERATOR_TOKEN=...
set -eu

url=${1:-http://127.0.0.1:8000}/api/v1
experiments=${2:-5}
run=${RUN:-curl-$(date +%s)}

call() { # call METHOD PATH [BODY] [KEY]: prints the answer; fails with the server's explanation
    set -- "$1" "$2" "${3:-}" "${4:-}"
    answer=$(curl --silent --show-error --max-time 600 --retry 5 --retry-connrefused \
        --request "$1" "$url$2" \
        ${SAFEBO_OPERATOR_TOKEN:+--header "Authorization: Bearer $SAFEBO_OPERATOR_TOKEN"} \
        ${4:+--header "Idempotency-Key: $4"} \
        ${3:+--header "Content-Type: application/json" --data "$3"} \
        --write-out '\n%{http_code}')
    code=${answer##*
}
    body=${answer%
*}
    case $code in
    2*) printf '%s\n' "$body" ;;
    *) printf '%s %s: %s\n' "$1" "$2" "$body" >&2; exit 1 ;;
    esac
}

number() { # number NAME: the first number of that name in the JSON on standard input
    sed -n "s/.*\"$1\":\(-\{0,1\}[0-9.eE+-]*\).*/\1/p" | head -n 1
}

measure() { # the experiment: kp kd -> objective
    awk -v kp="$1" -v kd="$2" 'BEGIN { printf "%.6f\n", 1 - (kp - 3)^2 / 4 - 4 * (kd - 0.4)^2 }'
}

call POST /runs '{
  "name": "'"$run"'",
  "parameters": {"kp": {"low": 0, "high": 5, "unit": "V/rad"}, "kd": {"low": 0, "high": 1, "unit": "V s/rad"}},
  "threshold": 0, "noise": 0.01, "kernel": {"lengthscale": 0.3}, "points_per_axis": 40,
  "initial": {"params": {"kp": 2, "kd": 0.3}, "objective": '"$(measure 2 0.3)"'}
}' >/dev/null

i=1
while [ "$i" -le "$experiments" ]; do
    # The same key gets the same trial again: if the answer is lost on the way, ask again.
    asked=$(call POST "/runs/$run/ask" "" "$run-ask-$i")
    case $asked in
    *'"ready":true'*) ;;
    *) printf 'nothing to run: %s\n' "$asked"; break ;;
    esac
    trial=$(printf '%s' "$asked" | sed -n 's/.*"trial":{"id":"\([^"]*\)".*/\1/p')
    params=$(printf '%s' "$asked" | sed -n 's/.*"params":\({[^}]*}\).*/\1/p')
    value=$(measure "$(printf '%s' "$params" | number kp)" "$(printf '%s' "$params" | number kd)")
    call POST "/runs/$run/tell" "{\"trial\": \"$trial\", \"objective\": $value}" "$run-tell-$i" >/dev/null
    printf '%s %s -> %s\n' "$i" "$params" "$value"
    i=$((i + 1))
done
call GET "/runs/$run/best"
