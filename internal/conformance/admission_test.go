package conformance_test

import (
	"net/http"
	"strings"
	"testing"
)

const (
	aPod   = `{apiVersion: v1, kind: Pod, metadata: {name: NAME}, spec: {SPEC containers: [{name: c, image: i}]}}`
	aClaim = `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: NAME}, spec: {SPEC accessModes: [ReadWriteOnce], resources: {requests: {storage: 2Gi}}}}`
)

// fromTemplate returns a manifest made from template, with a name and additional fields of the spec.
func fromTemplate(template, name, spec string) string {
	return strings.NewReplacer("NAME", name, "SPEC", spec).Replace(template)
}

func dryRun(path, body string) request {
	return request{method: http.MethodPost, path: path + "?dryRun=All", contentType: asYAML, body: body}
}

// waitForCode blocks until a dry-run create returns code on both servers. kube-apiserver's plugins read their
// configuration from informers, which lag behind the writes.
func (p *pair) waitForCode(t *testing.T, path, body string, code int) {
	t.Helper()
	p.waitForResponse(t, dryRun(path, body), func(a response) bool { return a.code == code })
}

// testAdmission compares the effects and the rejections of the admission plugins that are enabled by default.
func testAdmission(t *testing.T, p *pair) {
	const ns = "/api/v1/namespaces/admission"
	post := func(path, body string) { t.Helper(); p.do(t, "POST "+path, asYAML, body) }
	post("/api/v1/namespaces", `{apiVersion: v1, kind: Namespace, metadata: {name: admission}}`)
	post(ns+"/pods", fromTemplate(aPod, "without-account", ""))
	post(ns+"/serviceaccounts", `{apiVersion: v1, kind: ServiceAccount, metadata: {name: default}, imagePullSecrets: [{name: pull}]}`)
	post(ns+"/serviceaccounts", `{apiVersion: v1, kind: ServiceAccount, metadata: {name: quiet}, automountServiceAccountToken: false}`)
	p.waitForCode(t, ns+"/pods", fromTemplate(aPod, "plain", ""), 201)
	p.waitForCode(t, ns+"/pods", fromTemplate(aPod, "plain", "serviceAccountName: quiet,"), 201)
	post(ns+"/pods", fromTemplate(aPod, "plain", ""))
	post(ns+"/pods", fromTemplate(aPod, "quiet", "serviceAccountName: quiet,"))
	post(ns+"/pods", fromTemplate(aPod, "unknown-account", "serviceAccountName: none,"))
	const (
		classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
		second  = `{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: usual-too}, value: 11, globalDefault: true}`
	)
	post(classes, `{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high}, value: 1000}`)
	post(classes, `{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: system-mine}, value: 11}`)
	post(classes, `{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: usual}, value: 10, globalDefault: true, preemptionPolicy: Never}`)
	p.waitForCode(t, classes, second, 403)
	post(classes, second)
	post(ns+"/pods", fromTemplate(aPod, "usual", ""))
	post(ns+"/pods", fromTemplate(aPod, "high", "priorityClassName: high,"))
	post(ns+"/pods", fromTemplate(aPod, "own-number", "priority: 5,"))
	post(ns+"/pods", fromTemplate(aPod, "unknown-class", "priorityClassName: none,"))
	post("/apis/node.k8s.io/v1/runtimeclasses",
		`{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: heavy}, handler: h, overhead: {podFixed: {cpu: 10m}}, scheduling: {nodeSelector: {a: b}}}`)
	p.waitForCode(t, ns+"/pods", fromTemplate(aPod, "heavy", "runtimeClassName: heavy,"), 201)
	post(ns+"/pods", fromTemplate(aPod, "heavy", "runtimeClassName: heavy,"))
	post(ns+"/pods", fromTemplate(aPod, "unknown-runtime", "runtimeClassName: none,"))
	testLimits(t, p, ns)
	testClasses(t, p, ns)
	testPodSecurity(t, p)
	testQuotas(t, p, ns)
	post("/api/v1/nodes", `{apiVersion: v1, kind: Node, metadata: {name: tainted}}`)
	p.do(t, "DELETE /api/v1/nodes/tainted", "", "")
}

// testLimits compares admission under a LimitRange.
func testLimits(t *testing.T, p *pair, ns string) {
	post := func(path, body string) { t.Helper(); p.do(t, "POST "+path, asYAML, body) }
	post(ns+"/limitranges", `{apiVersion: v1, kind: LimitRange, metadata: {name: limits}, spec: {limits: [
{type: Container, default: {cpu: 200m}, defaultRequest: {cpu: 100m}, max: {cpu: "1"}, min: {cpu: 50m}},
{type: PersistentVolumeClaim, max: {storage: 3Gi}, min: {storage: 1Gi}}]}}`)
	greedy := strings.Replace(fromTemplate(aPod, "greedy", ""),
		"image: i", `image: i, resources: {limits: {cpu: "2"}}`, 1)
	p.waitForCode(t, ns+"/pods", greedy, 403)
	post(ns+"/pods", greedy)
	post(ns+"/pods", fromTemplate(aPod, "limited", ""))
	post(ns+"/pods", strings.Replace(fromTemplate(aPod, "tiny", ""), "image: i",
		`image: i, resources: {limits: {cpu: 1m}}`, 1))
	post(ns+"/persistentvolumeclaims", fromTemplate(aClaim, "fits", ""))
	post(ns+"/persistentvolumeclaims", strings.Replace(fromTemplate(aClaim, "too-large", ""), "2Gi", "4Gi", 1))
	p.do(t, "DELETE "+ns+"/limitranges/limits", "", "")
	large := strings.Replace(fromTemplate(aClaim, "large", ""), "2Gi", "4Gi", 1)
	p.waitForCode(t, ns+"/persistentvolumeclaims", large, 201)
	post(ns+"/persistentvolumeclaims", large)
}

// testQuotas compares admission under a ResourceQuota. The test writes the quota's status, as no controller runs.
func testQuotas(t *testing.T, p *pair, ns string) {
	post := func(path, body string) { t.Helper(); p.do(t, "POST "+path, asYAML, body) }
	const hard = `{"status": {"hard": {"configmaps": "2", "count/secrets": "1", "requests.cpu": "1"}, "used": {"configmaps": "1", "count/secrets": "0", "requests.cpu": "0"}}}`
	post(ns+"/resourcequotas", `{apiVersion: v1, kind: ResourceQuota, metadata: {name: few}, spec: {hard: {configmaps: "2", count/secrets: "1", requests.cpu: "1"}}}`)
	p.do(t, "PATCH "+ns+"/resourcequotas/few/status", asMerge, hard)
	p.waitForCode(t, ns+"/configmaps", `{apiVersion: v1, kind: ConfigMap, metadata: {name: dry}}`, 201)
	post(ns+"/configmaps", `{apiVersion: v1, kind: ConfigMap, metadata: {name: second}}`)
	post(ns+"/configmaps", `{apiVersion: v1, kind: ConfigMap, metadata: {name: third}}`)
	post(ns+"/secrets", `{apiVersion: v1, kind: Secret, metadata: {name: first}}`)
	post(ns+"/secrets", `{apiVersion: v1, kind: Secret, metadata: {name: second}}`)
	post(ns+"/pods", fromTemplate(aPod, "no-requests", ""))
	post(ns+"/pods", strings.Replace(fromTemplate(aPod, "half", ""), "image: i",
		`image: i, resources: {requests: {cpu: 600m}}`, 1))
	post(ns+"/pods", strings.Replace(fromTemplate(aPod, "more", ""), "image: i",
		`image: i, resources: {requests: {cpu: 600m}}`, 1))
	p.do(t, "GET "+ns+"/resourcequotas/few", "", "")
	p.do(t, "DELETE "+ns+"/resourcequotas/few", "", "")
}

// testClasses compares the defaults that come from a default StorageClass and a default IngressClass.
func testClasses(t *testing.T, p *pair, ns string) {
	post := func(path, body string) { t.Helper(); p.do(t, "POST "+path, asYAML, body) }
	post("/apis/storage.k8s.io/v1/storageclasses",
		`{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: disk, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}, provisioner: p}`)
	p.waitForResponse(t, dryRun(ns+"/persistentvolumeclaims", fromTemplate(aClaim, "by-default", "")),
		func(a response) bool { return nested[string](a.body, "spec", "storageClassName") == "disk" })
	post(ns+"/persistentvolumeclaims", fromTemplate(aClaim, "by-default", ""))
	post(ns+"/persistentvolumeclaims", fromTemplate(aClaim, "by-no-class", `storageClassName: "",`))
	p.do(t, "PATCH "+ns+"/persistentvolumeclaims/by-default", asMerge,
		`{"spec": {"resources": {"requests": {"storage": "5Gi"}}}}`)
	post("/apis/networking.k8s.io/v1/ingressclasses",
		`{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: first, annotations: {ingressclass.kubernetes.io/is-default-class: "true"}}, spec: {controller: example.com/c}}`)
	const ingress = `{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: NAME}, spec: {SPEC defaultBackend: {service: {name: s, port: {number: 80}}}}}`
	const ingresses = "/apis/networking.k8s.io/v1/namespaces/admission/ingresses"
	p.waitForResponse(t, dryRun(ingresses, fromTemplate(ingress, "by-default", "")),
		func(a response) bool { return nested[string](a.body, "spec", "ingressClassName") == "first" })
	post(ingresses, fromTemplate(ingress, "by-default", ""))
	post(ingresses, fromTemplate(ingress, "named", "ingressClassName: first,"))
}

// testPodSecurity compares the enforcement of a namespace's Pod Security levels.
func testPodSecurity(t *testing.T, p *pair) {
	const ns = "/api/v1/namespaces/guarded"
	post := func(path, body string) { t.Helper(); p.do(t, "POST "+path, asYAML, body) }
	post("/api/v1/namespaces", `{apiVersion: v1, kind: Namespace, metadata: {name: unguarded, labels: {pod-security.kubernetes.io/enforce: nonsense}}}`)
	post("/api/v1/namespaces", `{apiVersion: v1, kind: Namespace, metadata: {name: guarded, labels: {pod-security.kubernetes.io/enforce: baseline, pod-security.kubernetes.io/warn: restricted}}}`)
	post(ns+"/serviceaccounts", `{apiVersion: v1, kind: ServiceAccount, metadata: {name: default}}`)
	p.waitForCode(t, ns+"/pods", fromTemplate(aPod, "warned", ""), 201)
	post(ns+"/pods", fromTemplate(aPod, "warned", ""))
	post(ns+"/pods", fromTemplate(aPod, "refused", "hostNetwork: true,"))
	post("/apis/apps/v1/namespaces/guarded/deployments",
		`{apiVersion: apps/v1, kind: Deployment, metadata: {name: warned}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {hostPID: true, containers: [{name: c, image: i}]}}}}`)
	p.do(t, "PATCH /api/v1/namespaces/guarded", asMerge,
		`{"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}`)
	p.do(t, "PATCH /api/v1/namespaces/guarded", asMerge,
		`{"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "no level"}}}`)
	p.waitForCode(t, ns+"/pods", fromTemplate(aPod, "refused-now", ""), 403)
	post(ns+"/pods", fromTemplate(aPod, "refused-now", ""))
}
