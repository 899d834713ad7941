<?php
// PHP with its curl extension: php php.php RECORDING SERVER
[, $recording, $server] = $argv;

function transcribe(string $recording, string $server, string $format): string
{
    $request = curl_init("$server/v1/audio/transcriptions");
    curl_setopt_array($request, [
        CURLOPT_POSTFIELDS => ["file" => new CURLFile($recording), "model" => "whisper-1", "response_format" => $format],
        CURLOPT_RETURNTRANSFER => true,
        CURLOPT_FAILONERROR => true,
    ]);
    $answer = curl_exec($request);
    if ($answer === false) {
        throw new RuntimeException(curl_error($request));
    }
    return $answer;
}

echo "# json\n", json_decode(transcribe($recording, $server, "json"))->text, "\n";
echo "# srt\n", transcribe($recording, $server, "srt"), "\n";
echo "# vtt\n", transcribe($recording, $server, "vtt"), "\n";
