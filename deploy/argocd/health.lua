-- The health of an InferenceService, from kstatus' conditions alone: it does not follow traffic,
-- because Ready does not depend on the SLA.
--
-- Install it beside what argocd-cm holds already:
--   kubectl -n argocd create configmap argocd-cm --dry-run=client -o yaml \
--     --from-file=resource.customizations.health.serving.paceline.dev_InferenceService=deploy/argocd/health.lua |
--   kubectl apply --server-side --field-manager=paceline -f -

local spec = obj.spec or {}
local status = obj.status or {}

if spec.paused then
  return {status = "Suspended", message = "spec.paused freezes the children"}
end

local found = {}
for _, condition in ipairs(status.conditions or {}) do
  found[condition.type] = condition
end

if found.Ready == nil or (status.observedGeneration or 0) < (obj.metadata.generation or 0) then
  return {status = "Progressing", message = "waiting for the operator to report"}
end

if found.Stalled ~= nil and found.Stalled.status == "True" then
  return {status = "Degraded", message = found.Stalled.reason .. ": " .. found.Stalled.message}
end

if found.Ready.status == "True" then
  return {status = "Healthy", message = found.Ready.message}
end

return {status = "Progressing", message = found.Ready.reason .. ": " .. found.Ready.message}
