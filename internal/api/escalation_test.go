package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// TestEscalationByName checks that a user with the verb escalate for one role name cannot create that role with POST. A
// POST is authorized without a name. Only a PUT to that name may grant rights that the user does not have.
func TestEscalationByName(t *testing.T) {
	h := newHarness(t)
	const roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
	h.want(201, "POST", roles, `{"metadata":{"name":"maker"},"rules":[
{"apiGroups":["rbac.authorization.k8s.io"],"resources":["clusterroles"],"verbs":["create","update"]},
{"apiGroups":["rbac.authorization.k8s.io"],"resources":["clusterroles"],"resourceNames":["target"],
"verbs":["escalate"]}]}`)
	h.want(201, "POST", strings.Replace(roles, "roles", "rolebindings", 1), `{"metadata":{"name":"maker"},
"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"maker"},
"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"mary"}]}`)
	const role, as = `{"metadata":{"name":"target"},"rules":[{"apiGroups":[""],"resources":["secrets"],
"verbs":["get"]}]}`, "Impersonate-User: mary"
	for _, path := range []string{roles, roles + "?dryRun=All"} {
		h.wantText(403, "is attempting to grant RBAC permissions not currently held", "POST", path, role, as)
	}
	h.want(403, "PUT", roles+"/other", strings.Replace(role, "target", "other", 1), as)
	h.want(201, "PUT", roles+"/target", role, as)
}

// TestEscalationOfUpdates checks updates by a user who lacks the rights of the role. The user may change only the
// fields that the garbage collector needs, such as finalizers. An update with an incomplete object is refused. The
// escalation check runs before any other check of the object.
func TestEscalationOfUpdates(t *testing.T) {
	h := newHarness(t)
	const (
		roles    = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
		bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
	)
	h.want(201, "POST", roles, `{"metadata":{"name":"maker"},"rules":[{"apiGroups":["rbac.authorization.k8s.io"],
"resources":["*"],"verbs":["create","update"]}]}`)
	h.want(201, "POST", bindings, `{"metadata":{"name":"maker"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io",
"kind":"ClusterRole","name":"maker"},
"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"mary"}]}`)
	const rules, as = `"rules":[{"apiGroups":[""],"resources":["secrets"],"verbs":["get"]}]}`, "Impersonate-User: mary"
	role := tree(t, h.want(201, "POST", roles, `{"metadata":{"name":"big"},`+rules).Body)
	role["metadata"].(map[string]any)["finalizers"] = []any{"a.example.com/b"}
	whole, err := json.Marshal(role)
	if err != nil {
		t.Fatal(err)
	}
	const missing = "is attempting to grant RBAC permissions not currently held:\n" +
		`{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}`
	const forbidden = `is forbidden: user "mary" (groups=["system:authenticated"]) ` + missing
	for _, rv := range []string{"", `,"resourceVersion":"1"`, `,"resourceVersion":"x"`} {
		h.wantError(403, `clusterroles.rbac.authorization.k8s.io "big" `+forbidden, "PUT", roles+"/big",
			`{"metadata":{"name":"big","finalizers":["a.example.com/b"]`+rv+`},`+rules, as)
	}
	h.want(200, "PUT", roles+"/big", string(whole), as)
	h.wantError(403, "clusterroles.rbac.authorization.k8s.io "+forbidden, "POST", roles,
		`{"metadata":{"generateName":"big-"},`+rules, as)

	bind := func(kind, name string) string {
		return `{"metadata":{"name":"b"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"` + kind +
			`","name":"` + name + `"}}`
	}
	h.wantError(404, `clusterrolebindings.rbac.authorization.k8s.io "none" not found`, "POST", bindings,
		bind("ClusterRole", "none"), as)
	h.wantError(400, "Namespace parameter required.", "POST", bindings, bind("Role", "none"), as)
	h.wantError(400, "Name parameter required.", "POST", bindings, bind("ClusterRole", ""), as)
	h.wantError(400, `Name parameter invalid: "a/b": may not contain '/'`, "POST", bindings, bind("ClusterRole", "a/b"),
		as)
	h.wantError(500, `unsupported role reference kind: "Foo"`, "POST", bindings, bind("Foo", "x"), as)
}

// TestForbiddenInvalidListHasNoName checks the message of a forbidden list. If the options are valid, a field
// selector metadata.name adds the name of the object to the message. If any option is invalid, the message has no
// name.
func TestForbiddenInvalidListHasNoName(t *testing.T) {
	h := newHarness(t)
	const cannot = `User "mary" cannot list resource "configmaps" in API group "" in the namespace "default"`
	const path, as = "/api/v1/namespaces/default/configmaps?fieldSelector=metadata.name%3Da", "Impersonate-User: mary"
	h.wantError(403, `configmaps "a" is forbidden: `+cannot, "GET", path, "", as)
	for _, query := range []string{"limit=x", "labelSelector=a%3D%3D%3D"} {
		h.wantError(403, "configmaps is forbidden: "+cannot, "GET", path+"&"+query, "", as)
	}
}

// TestEmptyNames checks requests whose path lacks the namespace or the name, or has an invalid name.
func TestEmptyNames(t *testing.T) {
	h := newHarness(t)
	const maps, none = "/api/v1/namespaces/default/configmaps", "Namespace parameter required."
	h.want(200, "GET", "/api/v1/namespaces//configmaps", "")
	h.want(404, "GET", "/api/v1/namespaces//nodes", "")
	h.wantError(400, none, "GET", "/api/v1/namespaces//configmaps/a", "")
	h.wantError(400, none, "DELETE", "/api/v1/namespaces//configmaps", "")
	h.wantError(400, none, "POST", "/api/v1/namespaces//configmaps", `{"metadata":{"name":"a"}}`)
	h.wantError(405, "the server does not allow this method on the requested resource", "POST",
		"/api/v1/namespaces//configmaps/a", "{}")
	h.wantError(405, "the server does not allow this method on the requested resource", "POST", maps+"/a%25b", "{}")
	h.wantError(400, "name must be provided", "GET",
		"/api/v1/namespaces/default/pods//status?fieldSelector=metadata.name%3Da", "")
	for _, method := range []string{"GET", "PUT", "PATCH"} {
		h.wantError(400, "name must be provided", method, "/api/v1/namespaces/default/pods//status", "{}")
	}
}

// TestCombinationsInRolesAreLimited checks that the escalation check of a role takes bounded time and memory. The
// check lists all combinations of groups, resources and verbs. A rule of 6 KiB with 300 groups, 300 resources and
// 300 verbs has 27 million combinations, which would exhaust the server's memory.
func TestCombinationsInRolesAreLimited(t *testing.T) {
	h := newHarness(t)
	const group = "/apis/rbac.authorization.k8s.io/v1"
	const roles, bindings, as = group + "/clusterroles", group + "/clusterrolebindings", "Impersonate-User: mary"
	words := func(n int, prefix string) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf("%q", fmt.Sprint(prefix, i)))
		}
		return strings.Join(all, ",")
	}
	role := func(name string, n int) string {
		return `{"metadata":{"name":"` + name + `"},"rules":[{"apiGroups":[` + words(n, "g") + `],"resources":[` +
			words(n, "r") + `],"verbs":[` + words(n, "v") + `]}]}`
	}
	h.want(201, "POST", roles, `{"metadata":{"name":"maker"},"rules":[
{"apiGroups":["rbac.authorization.k8s.io"],"resources":["*"],"verbs":["create","update"]},
{"apiGroups":[""],"resources":["pods",`+words(2000, "r")+`],"verbs":["get"]}]}`)
	h.want(201, "POST", bindings, `{"metadata":{"name":"maker"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io",
"kind":"ClusterRole","name":"maker"},
"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"mary"}]}`)
	h.wantError(422, `ClusterRole.rbac.authorization.k8s.io "big" is invalid: rules: Too many: 27000000: must have `+
		`at most 50000 items`, "POST", roles, role("big", 300), as)
	h.wantText(422, "rules: Too many: 27000: must have at most", "POST", roles, role("middle", 30), as)
	h.want(201, "POST", roles, role("middle", 30))
	h.wantText(422, "roleRef: Too many: 27000: must have at most", "POST", bindings,
		`{"metadata":{"name":"b"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole",
"name":"middle"}}`, as)
	h.want(201, "POST", roles, `{"metadata":{"name":"small"},"rules":[{"apiGroups":[""],"resources":["pods"],
"verbs":["get"]}]}`, as)
}
