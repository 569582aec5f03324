package apiserver_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/apiserver"
)

// TestNoAPIServices checks that stored APIServices have no effect while apiregistration.k8s.io is disabled. (EXT-001)
func TestNoAPIServices(t *testing.T) {
	c := apiserver.Config{DataDir: t.TempDir()}
	const service = `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.batch"},"spec":{"group":"batch","version":"v1",
		"groupPriorityMinimum":1,"versionPriority":1,"insecureSkipTLSVerify":true,"service":{"namespace":"n","name":"s"}}}`
	const services = "/apis/apiregistration.k8s.io/v1/apiservices"
	first := start(t, c)
	patch, err := http.NewRequest(http.MethodPatch, first.URL()+services+"/v1.batch?fieldManager=t&force=true",
		strings.NewReader(service))
	if err != nil {
		t.Fatal(err)
	}
	patch.Header.Set("Content-Type", "application/apply-patch+yaml")
	resp, err := client(t, first).Do(patch)
	if err != nil || resp.StatusCode/100 != 2 {
		t.Fatal(resp, err)
	}
	get := func(s *apiserver.Server, path string, status int) {
		t.Helper()
		resp, err := client(t, s).Get(s.URL() + path)
		body(t, resp, err, status)
	}
	get(first, "/apis/batch/v1/jobs", http.StatusServiceUnavailable)
	if err := first.Shutdown(); err != nil {
		t.Fatal(err)
	}
	c.RuntimeConfig = map[string]string{"apiregistration.k8s.io/v1": "false"}
	off := start(t, c)
	get(off, "/apis/batch/v1/jobs", http.StatusOK)
	get(off, services, http.StatusNotFound)
}

// TestRuntimeConfig checks that kinds that --runtime-config disables are not served, and that discovery and OpenAPI
// do not contain them. After the kinds are enabled again, their objects are unchanged. (EXT-001)
func TestRuntimeConfig(t *testing.T) {
	c := apiserver.Config{DataDir: t.TempDir(), Address: "0.0.0.0:0"}
	const job = `{"apiVersion":"batch/v1","kind":"CronJob","metadata":{"name":"a"},"spec":{"schedule":"* * * * *","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}}}`
	const jobs = "/apis/batch/v1/namespaces/default/cronjobs"
	first := start(t, c)
	resp, err := client(t, first).Post(first.URL()+jobs, "application/json", strings.NewReader(job))
	body(t, resp, err, http.StatusCreated)
	if err := first.Shutdown(); err != nil {
		t.Fatal(err)
	}
	c.RuntimeConfig = map[string]string{"api/all": "false", "v1": "true", "batch/v1": "true",
		"batch/v1/cronjobs": "false", "autoscaling/v2": "true"}
	off := start(t, c)
	get := func(s *apiserver.Server, path string, status int) string {
		resp, err := client(t, s).Get(s.URL() + path)
		return body(t, resp, err, status)
	}
	const found = `"message":"the server could not find the requested resource"`
	for path, want := range map[string]string{
		jobs: found, jobs + "/a": found, "/apis/autoscaling/v1": found,
		"/apis/autoscaling/v1/horizontalpodautoscalers": found,
		"/apis/apps": found, "/apis/apps/v1": found, "/openapi/v3/apis/apps/v1": "404 page not found\n",
	} {
		if got := get(off, path, http.StatusNotFound); !strings.Contains(strings.ReplaceAll(got, `": "`, `":"`), want) {
			t.Errorf("%s: %s", path, got)
		}
	}
	get(off, "/apis/apps/v1/deployments", http.StatusNotFound)
	for path, kinds := range map[string][2]string{ // text that the response contains, and text that it does not contain
		"/apis": {`"autoscaling/v2"`, `autoscaling/v1"`}, "/apis/batch/v1": {`"jobs"`,
			"cronjobs"}, "/openapi/v2": {"/apis/batch/v1/jobs", "cronjobs"},
		"/openapi/v3": {"apis/autoscaling/v2", "apis/apps"}, "/openapi/v3/apis/batch/v1": {"/apis/batch/v1/jobs",
			"cronjobs"},
	} {
		if got := get(off, path, http.StatusOK); !strings.Contains(got, kinds[0]) || strings.Contains(got, kinds[1]) {
			t.Errorf("%s: %.2000s", path, got)
		}
	}
	get(off, "/readyz", http.StatusOK)
	if err := off.Shutdown(); err != nil {
		t.Fatal(err)
	}
	c.RuntimeConfig = nil
	if got := get(start(t, c), jobs+"/a", http.StatusOK); !strings.Contains(got, `"schedule":"* * * * *"`) {
		t.Errorf("the stored object has changed: %s", got)
	}
}

// TestServicesWithoutIPAddresses checks that a Service gets its cluster IP while the kind IPAddress is disabled, and
// while an aggregated server serves its group and version (EXT-001).
func TestServicesWithoutIPAddresses(t *testing.T) {
	off := start(t, apiserver.Config{RuntimeConfig: map[string]string{"networking.k8s.io/v1": "false"}})
	post(t, off, services, `{"metadata":{"name":"a"},"spec":{"ports":[{"port":80}]}}`)

	aggregated := start(t, apiserver.Config{})
	until(t, aggregated, apiServices+"/v1.networking.k8s.io", http.StatusOK, "Local")
	patch(t, aggregated, apiServices+"/v1.networking.k8s.io", "merge-patch+json",
		`{"spec":{"insecureSkipTLSVerify":true,"service":{"namespace":"n","name":"s"}}}`, http.StatusOK)
	until(t, aggregated, "/apis/networking.k8s.io/v1/ipaddresses", http.StatusServiceUnavailable, "")
	post(t, aggregated, services, `{"metadata":{"name":"a"},"spec":{"ports":[{"port":80}]}}`)
}
