package kinds_test

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/object"
)

// TestItemLimits checks the limits of lists in which upstream compares each pair of items. Without a limit, an update
// of a Pod with 16,000 tolerations took a minute, and a create with 16,000 equal ports four minutes.
func TestItemLimits(t *testing.T) {
	c := serveCluster(t, kinds.Config{})
	const container = `{"name":"c","image":"i"}`
	template := func(spec string) string {
		return `"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{` + spec + `}}`
	}
	pod := func(lists string) string { return `"spec":{` + lists + `,"containers":[` + container + `]}` }
	const tolerations = `"tolerations":[*]`
	for i, l := range []struct{ apiVersion, kind, at, item, body string }{
		{"v1", "Pod", "spec.tolerations", `{"key":"a#","operator":"Exists"}`, pod(tolerations)},
		{"v1", "Pod", "spec.containers", `{"name":"a#","image":"i"}`, `"spec":{"containers":[*]}`},
		{"v1", "Pod", "spec.containers[*].ports", `{"containerPort":80}`,
			`"spec":{"containers":[{"name":"c","image":"i","ports":[*]}]}`},
		{"v1", "Pod", "spec.volumes", `{"name":"a#","emptyDir":{}}`, pod(`"volumes":[*]`)},
		{"v1", "Pod", "spec.volumes[*].configMap.items", `{"key":"k","path":"a#"}`,
			pod(`"volumes":[{"name":"v","secret":{"secretName":"s","items":[*]}}]`)},
		{"v1", "Pod", "spec.volumes[*].configMap.items", `{"key":"k","path":"a#"}`,
			pod(`"volumes":[{"name":"v","configMap":{"name":"s","items":[*]}}]`)},
		{"v1", "Pod", "spec.volumes[*].configMap.items", `{"path":"a#","fieldRef":{"fieldPath":"metadata.name"}}`,
			pod(`"volumes":[{"name":"v","downwardAPI":{"items":[*]}}]`)},
		{"v1", "Pod", "spec.volumes[*].configMap.items", `{"secret":{"name":"a#"}}`,
			pod(`"volumes":[{"name":"v","projected":{"sources":[*]}}]`)},
		{"v1", "Pod", "spec.topologySpreadConstraints",
			`{"topologyKey":"a#","maxSkew":1,"whenUnsatisfiable":"DoNotSchedule"}`,
			pod(`"topologySpreadConstraints":[*]`)},
		{"v1", "Pod", "spec.readinessGates", `{"conditionType":"a#"}`, pod(`"readinessGates":[*]`)},
		{"v1", "PodTemplate", "template.spec.tolerations", `{"key":"a#","operator":"Exists"}`,
			`"template":{"metadata":{"labels":{"a":"b"}},` + pod(tolerations) + `}`},
		{"v1", "ReplicationController", "spec.template.spec.tolerations", `{"key":"a#","operator":"Exists"}`,
			`"spec":{"template":{"metadata":{"labels":{"a":"b"}},` + pod(tolerations) + `}}`},
		{"apps/v1", "Deployment", "spec.template.spec.tolerations", `{"key":"a#","operator":"Exists"}`,
			`"spec":{` + template(tolerations+`,"containers":[`+container+`]`) + `}`},
		{"apps/v1", "ReplicaSet", "spec.template.spec.tolerations", `{"key":"a#","operator":"Exists"}`,
			`"spec":{` + template(tolerations+`,"containers":[`+container+`]`) + `}`},
		{"apps/v1", "DaemonSet", "spec.template.spec.tolerations", `{"key":"a#","operator":"Exists"}`,
			`"spec":{` + template(tolerations+`,"containers":[`+container+`]`) + `}`},
		{"apps/v1", "StatefulSet", "spec.volumeClaimTemplates",
			`{"metadata":{"name":"a#"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`,
			`"spec":{"volumeClaimTemplates":[*],` + template(`"containers":[`+container+`]`) + `}`},
		{"batch/v1", "Job", "spec.template.spec.tolerations", `{"key":"a#","operator":"Exists"}`,
			`"spec":{"template":{"spec":{"restartPolicy":"Never",` + tolerations + `,"containers":[` +
				container + `]}}}`},
		{"batch/v1", "CronJob", "spec.jobTemplate.spec.template.spec.tolerations", `{"key":"a#","operator":"Exists"}`,
			`"spec":{"schedule":"@daily","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never",` +
				tolerations + `,"containers":[` + container + `]}}}}}`},
		{"v1", "Service", "spec.externalIPs", `"192.0.2.1"`, `"spec":{"ports":[{"port":80}],"externalIPs":[*]}`},
		{"storage.k8s.io/v1", "CSINode", "spec.drivers", `{"name":"d#","nodeID":"n"}`, `"spec":{"drivers":[*]}`},
		{"storage.k8s.io/v1", "StorageClass", "allowedTopologies",
			`{"matchLabelExpressions":[{"key":"a","values":["b#"]}]}`, `"provisioner":"p","allowedTopologies":[*]`},
	} {
		name := fmt.Sprintf("x%d", i)
		with := func(n int) string {
			var items []string
			for i := range n {
				items = append(items, strings.ReplaceAll(l.item, "#", fmt.Sprint(i)))
			}
			return `{"metadata":{"name":"` + name + `"},` +
				strings.Replace(l.body, "*", strings.Join(items, ","), 1) + `}`
		}
		v := c.version(l.apiVersion, l.kind)
		want := l.at + ": Too many: 1001: must have at most 1000 items"
		if _, err := c.create(v, with(1001)); !apierrors.IsInvalid(err) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: got %.300v\nwant %s", l.kind, err, want)
		}
		if _, err := c.create(v, with(3)); err != nil {
			t.Errorf("%s with 3 items in %s: %.300v", l.kind, l.at, err)
		}
		if _, err := c.put(v, name, "", with(1001)); !apierrors.IsInvalid(err) ||
			!strings.HasSuffix(err.Error(), want) {
			t.Errorf("update of %s: got %.300v\nwant %s", l.kind, err, want)
		}
	}
}

// TestRequirementsOfAccessReviews checks that an access review has at most 100 requirements in each selector. Every
// authenticated user may send a review, and 4,000 empty requirements took 5.6 seconds of CPU time.
func TestRequirementsOfAccessReviews(t *testing.T) {
	c := serveCluster(t, kinds.Config{Authorizer: allowGet{}})
	for _, kind := range []string{"SelfSubjectAccessReview", "SubjectAccessReview", "LocalSubjectAccessReview"} {
		v := c.version("authorization.k8s.io/v1", kind)
		for _, selector := range []string{"labelSelector", "fieldSelector"} {
			with := func(n int, requirement string) string {
				body := `{"spec":{"resourceAttributes":{"verb":"get","namespace":"ns","` + selector +
					`":{"requirements":[` + strings.Repeat(requirement+",", n-1) + requirement + `]}}`
				if kind != "SelfSubjectAccessReview" {
					body += `,"user":"plain"`
				}
				return body + `}}`
			}
			for _, requirement := range []string{`{}`, `{"key":"a","operator":"In","values":["b"]}`} {
				want := "spec.resourceAttributes." + selector +
					".requirements: Too many: 101: must have at most 100 items"
				if _, err := c.create(v, with(101, requirement)); !apierrors.IsInvalid(err) ||
					!strings.HasSuffix(err.Error(), want) {
					t.Errorf("%s: got %.300v\nwant %s", kind, err, want)
				}
			}
			raw := func(n int) string {
				return strings.Replace(with(1, ""), `"requirements":[]`, `"rawSelector":"a=b`+
					strings.Repeat(",a=b", n-1)+`"`, 1)
			}
			if _, err := c.create(v, raw(101)); !apierrors.IsInvalid(err) ||
				!strings.Contains(err.Error(), selector+".requirements: Too many: 101") {
				t.Errorf("%s with a long %s: got %.300v", kind, selector, err)
			}
			if _, err := c.create(v, raw(100)); err != nil {
				t.Errorf("%s with 100 requirements in a %s: %v", kind, selector, err)
			}
			if _, err := c.create(v, with(100, `{"key":"a","operator":"In","values":["b"]}`)); err != nil {
				t.Errorf("%s with 100 of %s: %v", kind, selector, err)
			}
		}
	}
}

// TestListsOfCRDsAreLimited checks that a CRD has at most 1,000 versions, short names and categories, because
// validation compares each pair of them.
func TestListsOfCRDsAreLimited(t *testing.T) {
	c := serveCluster(t, kinds.Config{})
	for _, apiVersion := range []string{"apiextensions.k8s.io/v1", "apiextensions.k8s.io/v1beta1"} {
		for path, item := range map[string]string{
			"spec.versions": `{"name":"v#","served":true}`, "spec.names.shortNames": `"s#"`,
			"spec.names.categories": `"c#"`,
		} {
			var items []string
			for i := range 1001 {
				items = append(items, strings.ReplaceAll(item, "#", fmt.Sprint(i)))
			}
			list := path[strings.LastIndex(path, ".")+1:]
			text := strings.Replace(
				`{"metadata":{"name":"evils.example.com"},"spec":{"group":"example.com","scope":"Namespaced",`+
					`"names":{"plural":"evils","kind":"Evil","shortNames":[],"categories":[]},"versions":[]}}`,
				`"`+list+`":[`, `"`+list+`":[`+strings.Join(items, ","), 1)
			_, err := c.create(c.version(apiVersion, "CustomResourceDefinition"), text)
			if want := path + ": Too many: 1001: must have at most 1000 items"; !apierrors.IsInvalid(err) ||
				!strings.HasSuffix(err.Error(), want) {
				t.Errorf("%s: got %.300v\nwant %s", apiVersion, err, want)
			}
		}
	}
}

// TestUniqueListsAreLimited checks the limits of lists in which upstream's declarative validation compares each pair
// of items. Lists that have a limit in upstream need no further limit.
func TestUniqueListsAreLimited(t *testing.T) {
	for _, l := range []struct{ kind, path string }{
		{"DeviceTaintRule", "status.conditions"},
		{"PodCertificateRequest", "status.conditions"},
		{"PodDisruptionBudget", "status.conditions"},
		{"StorageVersionMigration", "status.conditions"},
		{"ValidatingAdmissionPolicy", "status.conditions"},
		{"ResourceClaim", "status.devices"},
		{"ResourceClaim", "status.devices.*.conditions"},
		{"ResourceClaim", "status.allocation.devices.results.*.skipNodeOperations"},
		{"ResourceSlice", "spec.skipNodeOperations"},
		{"Pod", "status.nodeAllocatableResourceClaimStatuses"},
		{"Pod", "status.nodeAllocatableResourceClaimStatuses.*.containers"},
		{"Pod", "status.nodeAllocatableResourceClaimStatuses.*.mapping"},
		{"Pod", "status.nodeAllocatableResourceClaimStatuses.*.overhead"},
		{"Pod", "status.volumeHealth"},
	} {
		found := false
		for _, d := range kinds.Definitions(kinds.Config{}) {
			if d.Names.Kind != l.kind {
				continue
			}
			for n, want := range map[int]bool{500: false, 501: true} {
				var value any = make([]any, n)
				steps := strings.Split(l.path, ".")
				for i := len(steps) - 1; i >= 0; i-- {
					if steps[i] == "*" {
						value = []any{value}
					} else {
						value = object.Tree{steps[i]: value}
					}
				}
				refused := false
				for i := range d.ItemLimits {
					refused = refused || d.ItemLimits[i].Check(value.(object.Tree)) != nil
				}
				if refused != want {
					t.Errorf("%s with %d items in %s: got refused %t, want %t", l.kind, n, l.path, refused, want)
				}
				found = true
			}
		}
		if !found {
			t.Errorf("no kind %s", l.kind)
		}
	}
}
