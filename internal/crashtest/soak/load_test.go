package soak_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

const (
	workers        = 4
	objectsPerKind = 10
	// stepTimeout limits the time to create, use and delete a kind.
	stepTimeout = time.Minute
)

// created are the objects of a kind NAME, in the order of their creation. They are deleted in the reverse order.
var created = []struct{ collection, name, rest string }{
	{"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "things.NAME.example.com", `"kind":
		"CustomResourceDefinition","spec":{"group":"NAME.example.com","scope":"Namespaced","names":{"plural":"things",
		"singular":"thing","kind":"Thing","listKind":"ThingList"},"versions":[{"name":"v1","served":true,"storage":true,
		"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object",
		"properties":{"size":{"type":"integer","default":1},"text":{"type":"string"}},"x-kubernetes-validations":[{"rule":
		"self.size < 1000"}]},"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}},{"name":"v1beta1",
		"served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object",
		"x-kubernetes-preserve-unknown-fields":true}}}]}`},
	{"/api/v1/namespaces", "NAME", `"kind":"Namespace"`},
	{"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", "NAME", `"spec":{"failurePolicy":"Fail",
		"matchConstraints":{"resourceRules":[{"apiGroups":["NAME.example.com"],"apiVersions":["v1"],"operations":["*"],
		"resources":["things"]}]},"validations":[{"expression":"object == null || object.spec.size < 999"}]}`},
	{"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings", "NAME", `"spec":{"policyName":"NAME",
		"validationActions":["Deny"]}`},
	{"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", "NAME", `"webhooks":[{"name":
		"NAME.example.com","failurePolicy":"Ignore","sideEffects":"None","timeoutSeconds":1,"admissionReviewVersions":["v1"],
		"clientConfig":{"url":"https://127.0.0.1:1/"},"rules":[{"apiGroups":["NAME.example.com"],"apiVersions":["v1"],
		"operations":["DELETE"],"resources":["things"]}]}]`},
	{"/apis/apiregistration.k8s.io/v1/apiservices", "v1.NAME.example.org", `"spec":{"group":"NAME.example.org","version":
		"v1","service":{"namespace":"NAME","name":"none"},"groupPriorityMinimum":100,"versionPriority":1,
		"insecureSkipTLSVerify":true}`},
	{"/api/v1/namespaces/NAME/serviceaccounts", "user", `"secrets":[]`},
	{"/apis/rbac.authorization.k8s.io/v1/namespaces/NAME/roles", "user", `"rules":[{"apiGroups":["NAME.example.com"],
		"resources":["things"],"verbs":["*"]}]`},
	{"/apis/rbac.authorization.k8s.io/v1/namespaces/NAME/rolebindings", "user", `"roleRef":{"kind":"Role","name":"user",
		"apiGroup":"rbac.authorization.k8s.io"},"subjects":[{"kind":"ServiceAccount","name":"user"}]`},
	{"/api/v1/namespaces/NAME/resourcequotas", "quota", `"spec":{"hard":{"count/things.NAME.example.com":"100"}}`},
	{"/api/v1/namespaces/NAME/secrets", "secret", `"stringData":{"a":"b"}`},
}

// client sends requests to one server.
type client struct{ rest.Interface }

func newClient(t *testing.T, config *rest.Config) *client {
	config.QPS = -1
	set, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return &client{set.Discovery().RESTClient()}
}

func (c *client) get(ctx context.Context, uri string) ([]byte, error) {
	return c.Get().RequestURI(uri).SetHeader("Accept", "application/json, */*").Do(ctx).Raw()
}

func (c *client) send(ctx context.Context, q *rest.Request, contentType, body string) error {
	if err := q.SetHeader("Content-Type", contentType).Body([]byte(body)).Do(ctx).Error(); err != nil {
		return fmt.Errorf("%s: %w", q.URL().Path, err)
	}
	return nil
}

// work creates, uses and deletes kinds for a duration. It returns their number when all their objects are gone.
func work(t *testing.T, clients []*client, load int, duration time.Duration) int64 {
	kinds, began := atomic.Int64{}, time.Now()
	var running sync.WaitGroup
	for w := range workers {
		running.Go(func() {
			for i := 0; time.Since(began) < duration; i++ {
				name := fmt.Sprintf("kind-%d", w) // the same name again and again, and names that are new
				if i%2 == 1 {
					name = fmt.Sprintf("kind-%d-%d-%d", w, load, i)
				}
				if err := clients[(w+i)%len(clients)].useKind(name); err != nil {
					t.Errorf("load %d, kind %s: %v", load, name, err)
					return
				}
				kinds.Add(1)
			}
		})
	}
	running.Wait()
	return kinds.Load()
}

// leader returns the server that runs the controllers. It is empty on the embedded store.
func (c *client) leader() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	lease := coordinationv1.Lease{}
	response, err := c.get(ctx, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-controller-manager")
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err == nil {
		err = json.Unmarshal(response, &lease)
	}
	return ptr.Deref(lease.Spec.HolderIdentity, ""), err
}

// useKind creates the objects of a kind, uses the kind, and deletes the objects.
func (c *client) useKind(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	replace := strings.NewReplacer("NAME", name)
	for _, o := range created {
		body := fmt.Sprintf(`{"metadata":{"name":%q},%s}`, o.name, o.rest)
		err := c.send(ctx, c.Post().AbsPath(replace.Replace(o.collection)), "application/json", replace.Replace(body))
		if err != nil {
			return err
		}
	}
	if err := c.useObjects(ctx, name); err != nil {
		return err
	}
	for i := len(created) - 1; i >= 0; i-- {
		path := replace.Replace(created[i].collection + "/" + created[i].name)
		if err := c.delete(ctx, path); err != nil {
			return fmt.Errorf("delete %s: %w", path, err)
		}
	}
	return nil
}

// delete deletes an object and waits until it is gone.
func (c *client) delete(ctx context.Context, path string) error {
	if err := c.Delete().AbsPath(path).Do(ctx).Error(); err != nil {
		return err
	}
	return wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		err := c.Get().AbsPath(path).Do(ctx).Error()
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}

// useObjects writes, watches and deletes the objects of a kind, and reads the discovery and the schema of the kind. It
// converts no objects, because the server caches 64 MiB of converted ones.
func (c *client) useObjects(ctx context.Context, name string) error {
	group := "/apis/" + name + ".example.com"
	things := group + "/v1/namespaces/" + name + "/things"
	if err := c.waitFor(ctx, things, "ThingList"); err != nil { // the kind is established
		return err
	}
	if err := c.waitFor(ctx, "/api/v1/namespaces/"+name+"/resourcequotas/quota", `"used":`); err != nil {
		return err
	}
	watch, err := c.Get().AbsPath(group+"/v1/things").Param("watch", "true").Stream(ctx)
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	defer func() { _ = watch.Close() }()

	for i := range objectsPerKind {
		object := fmt.Sprintf("%s/t%d", things, i)
		body := fmt.Sprintf(`{"apiVersion":"%s.example.com/v1","kind":"Thing","metadata":{"name":"t%d"},`+
			`"spec":{"text":%q}}`, name, i, strings.Repeat("x", 1000))
		apply := c.Patch(types.ApplyYAMLPatchType).AbsPath(object).Param("fieldManager", "soak").Param("force", "true")
		err := errors.Join(
			c.send(ctx, c.Post().AbsPath(things), "application/json", body),
			c.send(ctx, apply, string(types.ApplyYAMLPatchType), strings.Replace(body, `"text"`, `"size":2,"text"`, 1)),
			c.send(ctx, c.Patch(types.MergePatchType).AbsPath(object, "status"), string(types.MergePatchType),
				`{"status":{"a":1}}`))
		if err != nil {
			return err
		}
	}
	for _, uri := range []string{group + "/v1", "/openapi/v3" + group + "/v1", "/apis",
		"/api/v1/namespaces/" + name + "/events"} {
		if _, err := c.get(ctx, uri); err != nil {
			return fmt.Errorf("get %s: %w", uri, err)
		}
	}
	if err := c.Delete().AbsPath(things).Do(ctx).Error(); err != nil {
		return fmt.Errorf("delete %s: %w", things, err)
	}
	return readUntilDeleted(watch)
}

// waitFor waits until a response contains a text. The path may not exist yet.
func (c *client) waitFor(ctx context.Context, path, text string) error {
	err := wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		response, err := c.get(ctx, path)
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return bytes.Contains(response, []byte(text)), err
	})
	if err != nil {
		return fmt.Errorf("wait for %s in %s: %w", text, path, err)
	}
	return nil
}

// readUntilDeleted reads events until each object of a kind has been deleted.
func readUntilDeleted(watch io.Reader) error {
	decoder := json.NewDecoder(watch)
	for deleted := 0; deleted < objectsPerKind; {
		event := struct{ Type string }{}
		if err := decoder.Decode(&event); err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		if event.Type == "DELETED" {
			deleted++
		}
	}
	return nil
}
