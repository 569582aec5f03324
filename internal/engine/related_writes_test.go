package engine

import (
	"errors"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

const (
	ipAddressKey    = "/registry/ipaddresses/10.0.0.7"
	serviceManifest = `{"metadata":{"name":%q},"spec":{"clusterIP":"10.0.0.7","ports":[{"port":80}]}}`
)

// ipAddress returns the target of an IPAddress, or of all IPAddresses if name is "".
func (f *fixture) ipAddress(name string) verb.Target {
	f.Helper()
	t := f.target("networking.k8s.io", "v1", "ipaddresses", "")
	t.Name = name
	return t
}

// countIPAddresses returns the number of stored IPAddresses.
func (f *fixture) countIPAddresses() int { return f.Store.Head().Count("/registry/ipaddresses/", "") }

// TestIPAddressCreatedWithService checks that the commit that creates a Service also creates its IPAddress, in the
// form of kube-apiserver's allocator (EXT-020).
func TestIPAddressCreatedWithService(t *testing.T) {
	f := newFixture(t)
	var committed []storage.Write
	f.beforeCommit = func(writes []storage.Write) { committed = writes }
	f.mustCreate(f.service(""), fmt.Sprintf(serviceManifest, "a"))
	equal(t, "writes in one commit", []string{committed[0].Key, committed[1].Key},
		[]string{"/registry/services/specs/default/a", ipAddressKey})
	got := f.get(f.ipAddress("10.0.0.7"))
	equal(t, "labels", object.StringMap(object.Metadata(got), "labels"), map[string]string{"ipaddress.kubernetes.io/ip-family": "IPv4",
		"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"})
	equal(t, "spec", got["spec"], object.Tree{"parentRef": object.Tree{"resource": "services", "namespace": "default",
		"name": "a"}})
	equal(t, "manager", valueAt(object.Metadata(got)["managedFields"].([]any)[0].(object.Tree), "manager"),
		"kube-apiserver")
	if object.UID(got) == "" {
		t.Error("the IPAddress has no UID")
	}
}

// TestIPAddressDeletedWithService checks each write after which a Service no longer needs its IPAddress. The same
// commit deletes the IPAddress (EXT-020).
func TestIPAddressDeletedWithService(t *testing.T) {
	for name, end := range map[string]func(f *fixture) error{
		"delete": func(f *fixture) error {
			_, _, err := f.Delete(f.ctx, f.service("a"), metav1.DeleteOptions{}, f.caller)
			return err
		},
		"delete of a collection": func(f *fixture) error {
			_, err := f.DeleteCollection(f.ctx, f.service(""), metav1.DeleteOptions{}, read.ListOptions{}, f.caller)
			return err
		},
		"change to ExternalName": func(f *fixture) error {
			_, err := f.patch(f.service("a"), mergePatch,
				`{"spec":{"type":"ExternalName","externalName":"example.com","clusterIP":null,"clusterIPs":null}}`)
			return err
		},
		"the last finalizer": func(f *fixture) error {
			f.mustPatch(f.service("a"), mergePatch, `{"metadata":{"finalizers":["example.com/f"]}}`)
			if _, _, err := f.Delete(f.ctx, f.service("a"), metav1.DeleteOptions{}, f.caller); err != nil {
				return err
			}
			if f.countIPAddresses() != 1 {
				return errors.New("the IPAddress was deleted before the Service")
			}
			_, err := f.patch(subresource(f.service("a"), "status"), mergePatch, `{"metadata":{"finalizers":null}}`)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.mustCreate(f.service(""), fmt.Sprintf(serviceManifest, "a"))
			var last []storage.Write
			f.beforeCommit = func(writes []storage.Write) { last = writes }
			if err := end(f); err != nil {
				t.Fatal(err)
			}
			equal(t, "IPAddresses", f.countIPAddresses(), 0)
			equal(t, "writes of the last commit", len(last), 2)
			f.mustCreate(f.service(""), fmt.Sprintf(serviceManifest, "b"))
		})
	}
}

// TestDeleteServiceWithoutItsIPAddress checks the deletion of a Service if its IPAddress has been deleted or
// belongs to another object. It succeeds, and keeps the other object's IPAddress.
func TestDeleteServiceWithoutItsIPAddress(t *testing.T) {
	f := newFixture(t)
	for _, c := range []struct{ resource, left string }{{"gateways", "1"}, {"", "0"}} {
		f.mustCreate(f.service(""), fmt.Sprintf(serviceManifest, "a"))
		f.removeKey(ipAddressKey)
		if c.resource != "" {
			f.mustCreate(f.ipAddress(""),
				`{"metadata":{"name":"10.0.0.7"},"spec":{"parentRef":{"resource":"gateways","name":"g"}}}`)
		}
		if _, _, err := f.Delete(f.ctx, f.service("a"), metav1.DeleteOptions{}, f.caller); err != nil {
			t.Fatal(err)
		}
		equal(t, "IPAddresses", fmt.Sprint(f.countIPAddresses()), c.left)
		if f.countIPAddresses() > 0 {
			f.removeKey(ipAddressKey)
		}
	}
}

// TestIPAddressConflict checks that a Service does not get an address that is taken before its commit. If it
// requests no particular address, the server allocates another address.
func TestIPAddressConflict(t *testing.T) {
	service := func(f *fixture, ip string) {
		f.mustCreate(f.service(""), fmt.Sprintf(`{"metadata":{"name":"first"},"spec":{"clusterIP":%q,`+
			`"ports":[{"port":80}]}}`, ip))
	}
	other := func(f *fixture, ip string) {
		f.mustCreate(f.ipAddress(""), fmt.Sprintf(`{"metadata":{"name":%q},`+
			`"spec":{"parentRef":{"resource":"gateways","name":"g"}}}`, ip))
	}
	for name, take := range map[string]func(*fixture, string){"by a Service": service, "by another object": other} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			takeAddress := func(write storage.Write) { take(f, serviceSpec(t, write).ClusterIP) }
			r := f.raceBeforeCommit(takeAddress)
			_, err := f.create(f.service(""), fmt.Sprintf(serviceManifest, "late"))
			f.expectStatus(err, 422, metav1.StatusReasonInvalid,
				`spec.clusterIPs: Invalid value: ["10.0.0.7"]: failed to allocate IP 10.0.0.7: provided IP is `+
					`already allocated`)
			r.expectAttempts(1)
			f = newFixture(t)
			r = f.raceBeforeCommit(takeAddress)
			f.mustCreate(f.service(""), `{"metadata":{"name":"late"},"spec":{"ports":[{"port":80}]}}`)
			r.expectAttempts(2)
			equal(t, "IPAddresses", f.countIPAddresses(), 2)
		})
	}
}

// TestIPAddressChangedBeforeServiceDeletion checks that the deletion of a Service is retried if its IPAddress is
// written before the commit.
func TestIPAddressChangedBeforeServiceDeletion(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.service(""), fmt.Sprintf(serviceManifest, "a"))
	r := f.raceBeforeCommit(func(storage.Write) {
		f.mustPatch(f.ipAddress("10.0.0.7"), mergePatch, `{"metadata":{"labels":{"a":"b"}}}`)
	})
	if _, _, err := f.Delete(f.ctx, f.service("a"), metav1.DeleteOptions{}, f.caller); err != nil {
		t.Fatal(err)
	}
	r.expectAttempts(2)
	equal(t, "IPAddresses", f.countIPAddresses(), 0)
}

// TestIPAddressDryRun checks that a dry run neither creates nor deletes an IPAddress.
func TestIPAddressDryRun(t *testing.T) {
	f := newFixture(t)
	f.caller.DryRun = true
	f.mustCreate(f.service(""), fmt.Sprintf(serviceManifest, "a"))
	equal(t, "IPAddresses", f.countIPAddresses(), 0)
	f.caller.DryRun = false
	f.mustCreate(f.service(""), fmt.Sprintf(serviceManifest, "a"))
	f.caller.DryRun = true
	if _, _, err := f.Delete(f.ctx, f.service("a"), metav1.DeleteOptions{}, f.caller); err != nil {
		t.Fatal(err)
	}
	equal(t, "IPAddresses", f.countIPAddresses(), 1)
}
