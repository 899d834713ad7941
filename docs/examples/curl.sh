#!/bin/sh
# Every file route with nothing but curl: ./curl.sh recording.wav [http://127.0.0.1:8100] [KEY]
set -eu
recording=$1
server=${2:-http://127.0.0.1:8100}
key=${3:-none}

ask() {
    curl --silent --show-error --fail-with-body -H "Authorization: Bearer $key" "$@"
}

echo "== text"
ask "$server/v1/audio/transcriptions" -F file=@"$recording" -F model=whisper-1 -F response_format=text

echo "== subtitles"
ask "$server/v1/audio/transcriptions" -F file=@"$recording" -F model=whisper-1 -F response_format=srt

echo "== as it is decoded"
ask --no-buffer "$server/v1/audio/transcriptions" -F file=@"$recording" -F model=whisper-1 -F stream=true

echo "== a job, for long recordings: taken at once, fetched when it is done"
job=$(ask "$server/v1/jobs" -F file=@"$recording" -F model=whisper-1 -F response_format=text |
    sed 's/.*"id": *"\([^"]*\)".*/\1/')
# The events end with the job.
ask --no-buffer "$server/v1/jobs/$job/events" > /dev/null
ask "$server/v1/jobs/$job/result"
ask -X DELETE "$server/v1/jobs/$job" > /dev/null
