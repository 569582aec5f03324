package api

import (
	"strings"
	"testing"
)

// Who may escalate a role of a name may not create one of that name with rights that they do not have: a POST names nothing.
func TestEscalationByName(t *testing.T) {
	h := newHarness(t)
	const roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
	h.want(201, "POST", roles, `{"metadata":{"name":"maker"},"rules":[
{"apiGroups":["rbac.authorization.k8s.io"],"resources":["clusterroles"],"verbs":["create","update"]},
{"apiGroups":["rbac.authorization.k8s.io"],"resources":["clusterroles"],"resourceNames":["target"],"verbs":["escalate"]}]}`)
	h.want(201, "POST", strings.Replace(roles, "roles", "rolebindings", 1), `{"metadata":{"name":"maker"},
"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"maker"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"mary"}]}`)
	const role, as = `{"metadata":{"name":"target"},"rules":[{"apiGroups":[""],"resources":["secrets"],"verbs":["get"]}]}`, "Impersonate-User: mary"
	for _, path := range []string{roles, roles + "?dryRun=All"} {
		if text := h.want(403, "POST", path, role, as).Body.String(); !strings.Contains(text, "is attempting to grant RBAC permissions not currently held") {
			t.Error(text)
		}
	}
	h.want(403, "PUT", roles+"/other", strings.Replace(role, "target", "other", 1), as)
	h.want(201, "PUT", roles+"/target", role, as)
}
