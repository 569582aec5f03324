package conformance_test

import (
	"net/http"
	"testing"
)

const (
	rbacPath = "/apis/rbac.authorization.k8s.io/v1"
	asRBAC   = `"apiGroup":"rbac.authorization.k8s.io"`
	bigRules = `"rules":[{"apiGroups":[""],"resources":["secrets"],"verbs":["get"]}]`
)

// testAccess compares privilege-escalation checks for a user who can write roles and bindings but holds few
// permissions.
func testAccess(t *testing.T, p *pair) {
	p.do(t, "POST "+rbacPath+"/clusterroles", "",
		`{"metadata":{"name":"few"},"rules":[{"apiGroups":["rbac.authorization.k8s.io"],"resources":["*"],"verbs":["create","get","patch","update"]},
{"apiGroups":[""],"resources":["pods"],"verbs":["create"]}]}`)
	p.do(t, "POST "+rbacPath+"/clusterrolebindings", "", `{"metadata":{"name":"few"},"roleRef":{`+asRBAC+
		`,"kind":"ClusterRole","name":"few"},"subjects":[{`+asRBAC+`,"kind":"User","name":"jane"}]}`)
	in := rbacPath + "/namespaces/conformance"
	for path, content := range map[string]string{
		in + "/roles": bigRules, rbacPath + "/clusterroles": bigRules,
		in + "/rolebindings":              `"roleRef":{` + asRBAC + `,"kind":"Role","name":"big"}`,
		rbacPath + "/clusterrolebindings": `"roleRef":{` + asRBAC + `,"kind":"ClusterRole","name":"big"}`,
	} {
		p.escalate(t, path, content)
	}
	for _, kind := range []string{"Role", "ClusterRole", "Foo"} {
		for _, name := range []string{"big", "none", "", "a/b"} {
			body := `{"metadata":{"name":"t"},"roleRef":{` + asRBAC + `,"kind":"` + kind + `","name":"` + name + `"}}`
			p.jane(t, "POST", in+"/rolebindings?dryRun=All", body)
			p.jane(t, "POST", rbacPath+"/clusterrolebindings?dryRun=All", body)
		}
	}
	for _, query := range []string{"", "&limit=x", "&limit=1", "&labelSelector=a%3D%3D%3D"} {
		p.jane(t, "GET", configMaps+"?fieldSelector=metadata.name%3Done"+query, "")
	}
	testNames(t, p)
}

// escalate creates a role or a binding as the administrator, and then writes it as jane, who does not hold the
// permissions that it grants. content is the object without its metadata.
func (p *pair) escalate(t *testing.T, path, content string) {
	t.Helper()
	with := func(metadata string) string { return `{"metadata":{` + metadata + `},` + content + `}` }
	p.do(t, "POST "+path, "", with(`"name":"big"`))
	for _, metadata := range []string{
		`"name":"big","finalizers":["a.example.com/b"]`,
		`"name":"big","finalizers":["a.example.com/b"],"resourceVersion":"1"`,
		`"name":"big","resourceVersion":"x"`,
		`"name":"big","finalizers":["a.example.com/b"],"resourceVersion":"{rv}","uid":"{uid}"`,
	} {
		p.jane(t, "PUT", path+"/big", with(metadata))
	}
	for _, metadata := range []string{`"finalizers":["a.example.com/b"]`,
		`"finalizers":["a.example.com/c"],"resourceVersion":"1"`, `"finalizers":["bad"]`, `"labels":{"a":"b"}`} {
		p.jane(t, "PATCH", path+"/big", `{"metadata":{`+metadata+`}}`)
	}
	for _, metadata := range []string{`"generateName":"big-"`, `"name":"big"`, `"name":"a/b"`, ``,
		`"name":"c","resourceVersion":"7"`} {
		p.jane(t, "POST", path, with(metadata))
	}
	p.jane(t, "PUT", path+"/none", with(`"name":"none"`))
}

// jane sends a request as the user jane.
func (p *pair) jane(t *testing.T, method, path, body string) {
	t.Helper()
	r := request{method: method, path: path, body: body, header: http.Header{"Impersonate-User": {"jane"}}}
	if method == http.MethodPatch {
		r.contentType = asMerge
	}
	p.send(t, r)
}

// testNames compares requests whose path lacks a name or namespace, or has a name that no object can have.
func testNames(t *testing.T, p *pair) {
	const all = "/api/v1/namespaces"
	for _, query := range []string{"", "?dryRun=All"} {
		p.do(t, "PUT "+configMaps+"/one"+query, "", `{"metadata":{"name":"one","uid":"x"}}`)
	}
	p.do(t, "DELETE "+all+"//configmaps", "", "")
	p.do(t, "POST "+all+"/conformance/configmaps/a%25b", "", `{"metadata":{"name":"a"}}`)
	for _, path := range []string{all + "//configmaps/a", all + "//nodes", all + "/conformance/pods//status"} {
		p.get(t, path)
		p.do(t, "DELETE "+path, "", "")
		p.do(t, "PUT "+path, "", `{"metadata":{"name":"a"}}`)
		p.do(t, "POST "+path, "", `{"metadata":{"name":"a"}}`)
	}
	for _, body := range []string{`{}`, `{"target":{"kind":"X","name":"n"}}`, `{"target":{"name":"n"}}`} {
		p.do(t, "POST "+all+"/conformance/bindings", "", body)
	}
	p.do(t, "POST "+all+"/conformance/serviceaccounts", "", `{"metadata":{"name":"names"}}`)
	for _, name := range []string{"", "a/b", "none"} {
		p.do(t, "POST "+all+"/conformance/serviceaccounts/names/token", "",
			`{"spec":{"boundObjectRef":{"apiVersion":"v1","kind":"Secret","name":"`+name+`"}}}`)
	}
}
