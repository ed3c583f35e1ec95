{{/* What the operator may do where InferenceServices live. Each rule says why.
tests/operator/test_rbac_cluster.py holds that each verb is used, and that no other is asked for. */}}
{{- define "paceline.rules" -}}
# Watched and never written: the spec belongs to its author.
- apiGroups: [serving.paceline.dev]
  resources: [inferenceservices]
  verbs: [get, list, watch]
- apiGroups: [serving.paceline.dev]
  resources: [inferenceservices/status]
  verbs: [patch]
# Owner references with blockOwnerDeletion ask for this where that admission plugin is on.
- apiGroups: [serving.paceline.dev]
  resources: [inferenceservices/finalizers]
  verbs: [update]
# Written by server-side apply; deleted when new images have been tried. All else, the garbage
# collector deletes.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps, serviceaccounts, services]
  verbs: [get, list, watch, create, patch]
# The runtime token of each service is derived, not remembered: no Secret is ever read.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
# Deleted when replicas fall to one, or the spec says None.
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
# Written where spec.monitoring asks for them and the Prometheus Operator is there; not watched.
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors, prometheusrules]
  verbs: [get, create, patch, delete]
# The same where spec.api.gateway and spec.api.inferencePool ask for them.
- apiGroups: [gateway.envoyproxy.io]
  resources: [backendtrafficpolicies]
  verbs: [get, create, patch, delete]
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools]
  verbs: [get, create, patch, delete]
# Their addresses to tune them, their states for the conditions.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
# Listed for one pod whose volumes cannot be mounted: only the kubelet's events say why.
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, list]
{{- end }}
