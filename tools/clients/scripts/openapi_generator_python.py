"""OpenAPI Generator: the Python client that it generates from the server's schema calls every operation."""

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import generated
import openapi_generator_cli

recording, server = sys.argv[1:]
jar = Path(openapi_generator_cli.__file__).with_name("openapi-generator.jar")
command = ["java", "-Xmx512m", "-jar", str(jar), "generate", "-g", "python", "-o", "made"]
command += ["-i", str(generated.schema_of(server)), "--skip-validate-spec"]
subprocess.run(command, check=True, stdout=sys.stderr)

sys.path.insert(0, "made")
made: Any = importlib.import_module("openapi_client")
client = made.ApiClient(made.Configuration(host=server, access_token=generated.KEY))
audio, models_api, operations = made.AudioApi(client), made.ModelsApi(client), made.OperationsApi(client)
jobs, speakers, speech = made.JobsApi(client), made.SpeakersApi(client), made.SpeechApi(client)
realtime, text = made.RealtimeApi(client), made.TextApi(client)
answers: dict[str, Any] = {}
file = ("recording.wav", Path(recording).read_bytes())


def call(method: Callable[..., Any], wanted: str = "", **arguments: Any) -> Any:
    """Call an operation, note its answer under `wanted` or its name, and return it."""
    try:
        found = getattr(method.__self__, f"{method.__name__}_with_http_info")(**arguments)
        status, answer = found.status_code, found.data
    except made.ApiException as fault:
        status, answer = fault.status, fault.data
    answer = getattr(answer, "actual_instance", answer)
    kind = type(answer).__name__
    plain = answer.to_dict() if hasattr(answer, "to_dict") else answer
    if isinstance(plain, bytes):
        plain = json.loads(plain) if plain.startswith(b"{") else generated.sizes(plain)
    answers[wanted or method.__name__] = {"status": status, "type": kind, "answer": plain}
    return answer


for simple in (operations.health, operations.livez, operations.readyz, operations.metrics, speech.list_voices):
    call(simple)
call(realtime.create_client_secret, secret_request=made.SecretRequest())
models = call(models_api.list_models)
call(models_api.retrieve_model, model_id=models.data[0].id)

verbose = {"response_format": "verbose_json", "timestamp_granularities": ["word", "segment"]}
call(audio.create_transcription, file=file, **verbose)
call(audio.create_transcription, "json", file=file)
call(audio.stream_transcription, file=file)
call(audio.create_subtitles, file=file)
call(audio.create_alignment, file=file, text=generated.TEXT)
call(audio.create_translation, file=file, language="de", response_format="verbose_json")
call(audio.transcribe, audio_file=file)
call(audio.detect_language, audio_file=file)
call(audio.listen, body=file[1], model="nova-3", punctuate=True)
translated = made.TextTranslationRequest(texts=[generated.TEXT], target_language="de")
call(text.translate_texts, text_translation_request=translated)
segments = [made.DocumentSegment(start=0, end=1, text=generated.TEXT)]
call(text.create_document, document_request=made.DocumentRequest(segments=segments))

job = call(jobs.create_job, file=file, **verbose).id
for step in (jobs.job_events, jobs.retrieve_job, jobs.job_result, jobs.cancel_job, jobs.delete_job):
    call(step, job_id=job)
wanted = made.SpeechJobBody(input=generated.TEXT, response_format="mp3")
spoken = call(jobs.create_speech_job, speech_job_body=wanted).id
call(jobs.job_events, "events of a text", job_id=spoken)
call(jobs.job_result, "audio of a text", job_id=spoken)

voice = call(speakers.create_speaker, name="Anna", consent=generated.CONSENT, files=[file])
call(speakers.list_speakers)
for step in (speakers.retrieve_speaker, speakers.delete_speaker):
    call(step, speaker_id=voice.id)

said = made.SpeechRequest(input=generated.TEXT, response_format="wav")
for speak in (speech.create_speech, speech.stream_speech, speech.stream_samples):
    call(speak, speech_request=said)
call(speech.speak_as, file=file, input=generated.TEXT, response_format="wav")

call(models_api.retrieve_model, "unknown model", model_id="nobody")
call(audio.create_transcription, "unknown language", file=file, language="klingon")
stranger = made.ApiClient(made.Configuration(host=server, access_token="none-of-them"))
call(made.ModelsApi(stranger).list_models, "wrong key")
generated.tell(answers)
