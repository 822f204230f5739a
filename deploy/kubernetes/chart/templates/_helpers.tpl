{{- /* What names of objects begin with. Secrets, leases and pods' names follow from it. */ -}}
{{- define "ballast.name" -}}
{{- if contains "ballast" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-ballast" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end -}}
{{- end -}}

{{- define "ballast.selector" -}}
app.kubernetes.io/name: ballast
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "ballast.labels" -}}
{{ include "ballast.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "ballast.image" -}}
{{ .root.Values.image.registry }}/{{ .program }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end -}}

{{- /* The names by which nodes reach controllers: they lead to pods that are not ready, too. */ -}}
{{- define "ballast.controllers" -}}
{{- $root := . -}}
{{- range $i := until (int .Values.controller.replicas) -}}
{{- if $i }},{{ end -}}
{{ include "ballast.name" $root }}-controller-{{ $i }}.{{ include "ballast.name" $root }}-controller.{{ $root.Release.Namespace }}.svc
{{- end -}}
{{- end -}}

{{- define "ballast.pod" -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "ballast.check" -}}
{{- if not (or .Values.vips .Values.pools) }}{{ fail "vips: no addresses for Services: --set vips=203.0.113.0/28" }}{{ end -}}
{{- if and .Values.vips .Values.pools }}{{ fail "vips and pools: two places for one thing: use one of them" }}{{ end -}}
{{- if and .Values.bgp .Values.l2 }}{{ fail "bgp and l2: a node announces by one of them" }}{{ end -}}
{{- if not (or .Values.bgp .Values.l2) }}{{ fail "bgp, l2: nobody would announce the addresses: --set l2.interface=eth0, or --set bgp.as=64600,bgp.neighbor_as=64512,bgp.neighbors={10.0.0.1}" }}{{ end -}}
{{- if and .Values.bgp (not (and .Values.bgp.as .Values.bgp.neighbors)) }}{{ fail "bgp: it needs as and neighbors" }}{{ end -}}
{{- if and .Values.bgp (hasPrefix "/etc/ballast/bgp/" (.Values.bgp.password_file | default "")) (not .Values.node.bgpSecret) }}{{ fail "bgp.password_file: node.bgpSecret has no name of the Secret with it: --set node.bgpSecret=NAME" }}{{ end -}}
{{- if and .Values.node.bgpSecret (not .Values.bgp.password_file) }}{{ fail "node.bgpSecret: bgp.password_file names no key of it: --set bgp.password_file=/etc/ballast/bgp/KEY" }}{{ end -}}
{{- if and .Values.l2 (not .Values.l2.interface) }}{{ fail "l2: it needs interface" }}{{ end -}}
{{- end -}}

{{- /* The rules of ballast-kube's account are those of the manifest for those without Helm. */ -}}
{{- define "ballast.rules" -}}
{{- $ := . -}}
{{- range splitList "\n---\n" (.root.Files.Get "files/rbac.yaml") -}}
{{- $object := fromYaml . -}}
{{- if and (eq $object.kind $.kind) (has $object.metadata.name $.names) }}
{{ toYaml $object.rules }}
{{- end -}}
{{- end -}}
{{- end -}}
