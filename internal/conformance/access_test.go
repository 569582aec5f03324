package conformance_test

import (
	"net/http"
	"testing"
)

const (
	rbacPath = "/apis/rbac.authorization.k8s.io/v1"
	asRBAC   = `"apiGroup":"rbac.authorization.k8s.io"`
	ofBig    = `"rules":[{"apiGroups":[""],"resources":["secrets"],"verbs":["get"]}]`
)

// testAccess asks as somebody who may write roles and their bindings, but has few rights to give.
func testAccess(t *testing.T, p *pair) {
	p.do(t, "POST "+rbacPath+"/clusterroles", "", `{"metadata":{"name":"few"},"rules":[{"apiGroups":["rbac.authorization.k8s.io"],"resources":["*"],"verbs":["create","get","patch","update"]},
{"apiGroups":[""],"resources":["pods"],"verbs":["create"]}]}`)
	p.do(t, "POST "+rbacPath+"/clusterrolebindings", "", `{"metadata":{"name":"few"},"roleRef":{`+asRBAC+`,"kind":"ClusterRole","name":"few"},"subjects":[{`+asRBAC+`,"kind":"User","name":"jane"}]}`)
	in := rbacPath + "/namespaces/conformance"
	for path, made := range map[string]string{
		in + "/roles": ofBig, rbacPath + "/clusterroles": ofBig,
		in + "/rolebindings":              `"roleRef":{` + asRBAC + `,"kind":"Role","name":"big"}`,
		rbacPath + "/clusterrolebindings": `"roleRef":{` + asRBAC + `,"kind":"ClusterRole","name":"big"}`,
	} {
		p.escalate(t, path, made)
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

// escalate makes an object of what gives rights away, and has it written by who has none of these.
func (p *pair) escalate(t *testing.T, path, made string) {
	t.Helper()
	with := func(metadata string) string { return `{"metadata":{` + metadata + `},` + made + `}` }
	p.do(t, "POST "+path, "", with(`"name":"big"`))
	for _, metadata := range []string{
		`"name":"big","finalizers":["a.example.com/b"]`, `"name":"big","finalizers":["a.example.com/b"],"resourceVersion":"1"`,
		`"name":"big","resourceVersion":"x"`, `"name":"big","finalizers":["a.example.com/b"],"resourceVersion":"{rv}","uid":"{uid}"`,
	} {
		p.jane(t, "PUT", path+"/big", with(metadata))
	}
	for _, metadata := range []string{`"finalizers":["a.example.com/b"]`, `"finalizers":["a.example.com/c"],"resourceVersion":"1"`, `"finalizers":["bad"]`, `"labels":{"a":"b"}`} {
		p.jane(t, "PATCH", path+"/big", `{"metadata":{`+metadata+`}}`)
	}
	for _, metadata := range []string{`"generateName":"big-"`, `"name":"big"`, `"name":"a/b"`, ``, `"name":"c","resourceVersion":"7"`} {
		p.jane(t, "POST", path, with(metadata))
	}
	p.jane(t, "PUT", path+"/none", with(`"name":"none"`))
}

func (p *pair) jane(t *testing.T, method, path, body string) {
	t.Helper()
	r := request{method: method, path: path, body: body, header: http.Header{"Impersonate-User": {"jane"}}}
	if method == http.MethodPatch {
		r.contentType = asMerge
	}
	p.send(t, r)
}

// testNames asks by names that a path leaves out, or that no object can have.
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
		p.do(t, "POST "+all+"/conformance/serviceaccounts/names/token", "", `{"spec":{"boundObjectRef":{"apiVersion":"v1","kind":"Secret","name":"`+name+`"}}}`)
	}
}
