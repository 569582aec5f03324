package api

import (
	"strings"
	"testing"
)

const defaultNamespacePath = "/api/v1/namespaces/default"

// TestBodyOfAnotherKind checks that an object of another kind gets only the error about its kind. Neither its name nor
// its fields are validated against the schema (CRD-059).
func TestBodyOfAnotherKind(t *testing.T) {
	h := withCronTabs(t)
	for _, validation := range []string{"Strict", "Warn", "Ignore"} {
		query := "?fieldValidation=" + validation
		for _, c := range []struct{ body, want string }{
			{`{"apiVersion":"stable.example.com/v1","kind":"Other","metadata":{"name":"X_"},` +
				`"spec":{"foo":1,"replicas":"a"}}`,
				`Other.stable.example.com "X_" is invalid: kind: Invalid value: "Other": must be CronTab`},
			{`{"apiVersion":"stable.example.com/v1","kind":"CronTabList","items":[]}`,
				`CronTabList.stable.example.com "" is invalid: kind: Invalid value: "CronTabList": must be CronTab`},
		} {
			h.wantError(422, c.want, "POST", crontabs+query, c.body)
			if warnings := h.do("POST", crontabs+query, c.body).Header()["Warning"]; warnings != nil {
				t.Errorf("%s: got warnings %q, want none", validation, warnings)
			}
		}
		h.wantError(422, `Other.stable.example.com "a" is invalid: kind: Invalid value: "Other": must be CronTab`,
			"PATCH", crontabs+"/a"+query, `{"kind":"Other","spec":{"foo":1}}`,
			"Content-Type: application/merge-patch+json")
	}
	h.wantError(400, `Other in version "v1" cannot be handled as a Other: strict decoding error: unknown field `+
		`"metadata.foo"`,
		"POST", crontabs+"?fieldValidation=Strict",
		`{"apiVersion":"stable.example.com/v1","kind":"Other","metadata":{"name":"x","foo":1}}`)
}

// TestBodiesAreQuotedAsSent checks that error messages quote the body exactly as the client sent it.
func TestBodiesAreQuotedAsSent(t *testing.T) {
	h := withCronTabs(t)
	const unrecognized = `the object provided is unrecognized (must be of type CronTab): Object 'Kind' is missing in `
	h.wantError(400, unrecognized+`'{"spec": {"z":1.0, "a":"<"}}' ({"spec": {"z":1.0, "a":"<"}})`, "POST", crontabs,
		`{"spec": {"z":1.0, "a":"<"}}`)
	h.wantError(400, unrecognized+`'spec: {z: 1}' (737065633a207b7a3a20317d)`, "POST", crontabs, `spec: {z: 1}`,
		"Content-Type: application/yaml")
	for path, kind := range map[string]string{crontabs: "CronTab", defaultNamespacePath + "/configmaps": "ConfigMap"} {
		h.wantError(400, "the object provided is unrecognized (must be of type "+kind+
			`): unexpected GroupVersion string: a/b/c ({"apiVersion":"a/b/c"})`, "POST", path, `{"apiVersion":"a/b/c"}`)
	}
	for number, kind := range map[string]string{"9223372036854775808": "number 9223372036854775808",
		"80.0": "number 80.0", `"80"`: "string"} {
		h.wantError(400, `Service in version "v1" cannot be handled as a Service: json: cannot unmarshal `+kind+
			` into Go struct field ServicePort.spec.ports.port of type int32`,
			"POST", defaultNamespacePath+"/services",
			`{"metadata":{"name":"q"},"spec":{"ports":[{"port":`+number+`}]}}`)
	}
}

// TestSelfLinkIsDropped checks that no verb stores metadata.selfLink (CRD-025).
func TestSelfLinkIsDropped(t *testing.T) {
	h := withCronTabs(t)
	h.want(201, "POST", defaultNamespacePath+"/configmaps", `{"metadata":{"name":"a"}}`)
	for path, typeMeta := range map[string]string{
		crontabs + "/a":                        `"apiVersion":"stable.example.com/v1","kind":"CronTab"`,
		defaultNamespacePath + "/configmaps/a": `"apiVersion":"v1","kind":"ConfigMap"`,
	} {
		metadata := `"metadata":{"name":"a","selfLink":"/x","labels":{"a":"1"}}`
		rv := at(tree(t, h.do("GET", path, "").Body), "metadata", "resourceVersion").(string)
		for _, response := range []string{
			h.want(200, "PUT", path, "{"+typeMeta+","+strings.Replace(metadata, `"name"`,
				`"resourceVersion":"`+rv+`","name"`, 1)+"}").Body.String(),
			h.want(200, "PATCH", path, "{"+strings.Replace(metadata, "1", "2", 1)+"}",
				"Content-Type: application/merge-patch+json").Body.String(),
			h.want(200, "PATCH", path+"?fieldManager=m&force=true",
				"{"+typeMeta+","+strings.Replace(metadata, "1", "3", 1)+"}",
				"Content-Type: application/apply-patch+yaml").Body.String(),
			h.want(200, "GET", path, "").Body.String(),
		} {
			if strings.Contains(response, `"selfLink"`) || !strings.Contains(response, `"labels"`) {
				t.Errorf("%s: got %s, want labels without selfLink", path, response)
			}
		}
	}
}
