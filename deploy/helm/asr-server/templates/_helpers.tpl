{{- define "asr-server.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride }}
{{- else if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{- define "asr-server.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "asr-server.labels" -}}
{{ include "asr-server.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "asr-server.image" -}}
{{- if .Values.image.digest -}}
{{ printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end -}}
{{- end }}

{{/* The name of the claim of a volume, "" if it has none: include "asr-server.claim" (list $ "models"). */}}
{{- define "asr-server.claim" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $volume := index $root.Values $name -}}
{{- if $volume.existingClaim -}}
{{ $volume.existingClaim }}
{{- else if $volume.createClaim -}}
{{ include "asr-server.fullname" $root }}-{{ $name }}
{{- end -}}
{{- end }}

{{/* Numbers as JSON: a template would write 20000000 as 2e+07, which is no integer for the server. */}}
{{- define "asr-server.settings" -}}
{{- $device := ternary "cuda" "cpu" .Values.gpu.enabled -}}
{{- range $name, $value := merge (dict "DEVICE" $device) .Values.settings }}
{{ $name }}: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}
{{- end }}
{{- end }}

{{/* What the schema cannot say: values that do not fit each other. */}}
{{- define "asr-server.check" -}}
{{- $secret := .Values.secretSettings -}}
{{- $scaled := ne .Values.autoscaling.kind "none" -}}
{{- if not (or (hasKey $secret "API_KEYS") (eq (toString .Values.settings.ALLOW_ANONYMOUS) "true")) -}}
{{- fail "secretSettings.API_KEYS names no Secret: everyone who reaches the Service could use it. Name one, or set settings.ALLOW_ANONYMOUS to true." -}}
{{- end -}}
{{- if lt (int .Values.termination.gracePeriodSeconds) (add 45 .Values.termination.drainDelaySeconds | int) -}}
{{- fail "termination.gracePeriodSeconds must be at least termination.drainDelaySeconds and 45 s, in which the server hands its live sessions over and answers what it has accepted." -}}
{{- end -}}
{{- if and (include "asr-server.claim" (list . "state")) (or $scaled (gt (int .Values.replicas) 1)) -}}
{{- fail "A claim for state is for one replica without autoscaling: the directory belongs to one server. For more, set secretSettings.JOBS_DATABASE_URL for jobs, and a claim for voices." -}}
{{- end -}}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) -}}
{{- fail "autoscaling.minReplicas is more than autoscaling.maxReplicas." -}}
{{- end -}}
{{- if and (eq .Values.autoscaling.kind "keda") (not .Values.autoscaling.prometheusAddress) -}}
{{- fail "autoscaling.kind keda needs autoscaling.prometheusAddress." -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled (hasKey $secret "API_KEYS") (not (and .Values.serviceMonitor.keySecret .Values.serviceMonitor.keySecretKey)) -}}
{{- fail "serviceMonitor.keySecret and keySecretKey: /metrics needs one of the API_KEYS, in a Secret of its own." -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) -}}
{{- fail "ingress.hosts is empty." -}}
{{- end -}}
{{- if and (eq (toString .Values.rollingUpdate.maxSurge) "0") (eq (toString .Values.rollingUpdate.maxUnavailable) "0") -}}
{{- fail "rollingUpdate.maxSurge and rollingUpdate.maxUnavailable cannot both be 0." -}}
{{- end -}}
{{- end }}

{{/* Labels by which Prometheus knows the pods of this release, beside `namespace`. */}}
{{- define "asr-server.seriesLabels" -}}
{{ .Values.autoscaling.seriesLabels | default (dict "service" (include "asr-server.fullname" .)) | toYaml }}
{{- end }}

{{/* files/adapter-rules.yml has both queries for prometheus-adapter. */}}
{{- define "asr-server.replicasInUse" -}}
sum(asr_live_sessions{ {{- . -}} } / clamp_min(asr_live_sessions{ {{- . -}} } + asr_free_streams{ {{- . -}} }, 1))
{{- end }}

{{- define "asr-server.waitingSeconds" -}}
sum(avg_over_time(asr_queue_audio_seconds{ {{- . -}} }[2m]) / clamp_min(sum without (priority) (rate(asr_engine_audio_seconds_total{ {{- . -}} ,priority=~"interactive|bulk"}[2m])), 1))
{{- end }}

{{- define "asr-server.scalingBehavior" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  selectPolicy: Max
  policies:
    - {type: Percent, value: 100, periodSeconds: 60}
    - {type: Pods, value: 2, periodSeconds: 60}
scaleDown:
  stabilizationWindowSeconds: {{ .Values.autoscaling.scaleDownSeconds }}
  policies:
    - {type: Pods, value: 1, periodSeconds: 120}
{{- end }}
