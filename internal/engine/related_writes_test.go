package engine

import (
	"errors"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

const (
	ipAddressKey    = "/registry/ipaddresses/10.0.0.7"
	serviceManifest = `{"metadata":{"name":%q},"spec":{"clusterIP":"10.0.0.7","ports":[{"port":80}]}}`
)

func (f *fixture) ipAddress(name string) Target {
	f.Helper()
	t := f.target("networking.k8s.io", "v1", "ipaddresses", "")
	t.Name = name
	return t
}

// countIPAddresses is how many addresses there are.
func (f *fixture) countIPAddresses() int { return f.Store.Head().Count("/registry/ipaddresses/", "") }

// EXT-020: the IPAddress of a Service comes in the commit that makes the Service, as kube-apiserver's allocator makes it.
func TestIPAddressCreatedWithService(t *testing.T) {
	f := newFixture(t)
	var judged []storage.Write
	f.beforeCommit = func(writes []storage.Write) { judged = writes }
	f.mustCreate(f.service(""), fmt.Sprintf(serviceManifest, "a"))
	equal(t, "writes in one commit", []string{judged[0].Key, judged[1].Key}, []string{"/registry/services/specs/default/a", ipAddressKey})
	got := f.get(f.ipAddress("10.0.0.7"))
	equal(t, "labels", object.LabelMap(got), map[string]string{"ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"})
	equal(t, "spec", got["spec"], object.Tree{"parentRef": object.Tree{"resource": "services", "namespace": "default", "name": "a"}})
	equal(t, "manager", valueAt(object.Metadata(got)["managedFields"].([]any)[0].(object.Tree), "manager"), "kube-apiserver")
	if object.UID(got) == "" {
		t.Error("it has no uid")
	}
}

// EXT-020: it goes in the commit with which the Service needs it no longer, in whatever way that comes about.
func TestIPAddressDeletedWithService(t *testing.T) {
	for name, end := range map[string]func(f *fixture) error{
		"delete": func(f *fixture) error {
			_, _, err := f.Delete(f.ctx, f.service("a"), metav1.DeleteOptions{}, f.caller)
			return err
		},
		"delete of a collection": func(f *fixture) error {
			_, err := f.DeleteCollection(f.ctx, f.service(""), metav1.DeleteOptions{}, ListOptions{}, f.caller)
			return err
		},
		"change to ExternalName": func(f *fixture) error {
			_, err := f.patch(f.service("a"), mergePatch, `{"spec":{"type":"ExternalName","externalName":"example.com","clusterIP":null,"clusterIPs":null}}`)
			return err
		},
		"the last finalizer": func(f *fixture) error {
			f.mustPatch(f.service("a"), mergePatch, `{"metadata":{"finalizers":["example.com/f"]}}`)
			if _, _, err := f.Delete(f.ctx, f.service("a"), metav1.DeleteOptions{}, f.caller); err != nil {
				return err
			}
			if f.countIPAddresses() != 1 {
				return errors.New("it has gone before the Service")
			}
			_, err := f.patch(f.service("a").sub("status"), mergePatch, `{"metadata":{"finalizers":null}}`)
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
			equal(t, "addresses", f.countIPAddresses(), 0)
			equal(t, "writes of the last commit", len(last), 2)
			f.mustCreate(f.service(""), fmt.Sprintf(serviceManifest, "b"))
		})
	}
}

// An address that another object has meanwhile is not the Service's to delete; nor does a Service go without what somebody
// has deleted before.
func TestDeleteServiceWithoutItsIPAddress(t *testing.T) {
	f := newFixture(t)
	for _, c := range []struct{ resource, left string }{{"gateways", "1"}, {"", "0"}} {
		f.mustCreate(f.service(""), fmt.Sprintf(serviceManifest, "a"))
		f.removeKey(ipAddressKey)
		if c.resource != "" {
			f.mustCreate(f.ipAddress(""), `{"metadata":{"name":"10.0.0.7"},"spec":{"parentRef":{"resource":"gateways","name":"g"}}}`)
		}
		if _, _, err := f.Delete(f.ctx, f.service("a"), metav1.DeleteOptions{}, f.caller); err != nil {
			t.Fatal(err)
		}
		equal(t, "addresses", fmt.Sprint(f.countIPAddresses()), c.left)
		if f.countIPAddresses() > 0 {
			f.removeKey(ipAddressKey)
		}
	}
}

// Nobody is given an address that somebody takes between judgement and commit; where any will do, it is another one.
func TestIPAddressConflict(t *testing.T) {
	service := func(f *fixture, ip string) {
		f.mustCreate(f.service(""), fmt.Sprintf(`{"metadata":{"name":"first"},"spec":{"clusterIP":%q,"ports":[{"port":80}]}}`, ip))
	}
	other := func(f *fixture, ip string) {
		f.mustCreate(f.ipAddress(""), fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"parentRef":{"resource":"gateways","name":"g"}}}`, ip))
	}
	for name, take := range map[string]func(*fixture, string){"by a Service": service, "by somebody else": other} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			taking := func(judged storage.Write) { take(f, serviceSpec(t, judged).ClusterIP) }
			r := f.raceBeforeCommit(taking)
			_, err := f.create(f.service(""), fmt.Sprintf(serviceManifest, "late"))
			f.expectStatus(err, 422, metav1.StatusReasonInvalid, `spec.clusterIPs: Invalid value: ["10.0.0.7"]: failed to allocate IP 10.0.0.7: provided IP is already allocated`)
			r.expectAttempts(1)
			f = newFixture(t)
			r = f.raceBeforeCommit(taking)
			f.mustCreate(f.service(""), `{"metadata":{"name":"late"},"spec":{"ports":[{"port":80}]}}`)
			r.expectAttempts(2)
			equal(t, "addresses", f.countIPAddresses(), 2)
		})
	}
}

// A Service is deleted from anew where somebody writes its IPAddress before the commit.
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
	equal(t, "addresses", f.countIPAddresses(), 0)
}

// A dry run takes no address and frees none.
func TestIPAddressDryRun(t *testing.T) {
	f := newFixture(t)
	f.caller.DryRun = true
	f.mustCreate(f.service(""), fmt.Sprintf(serviceManifest, "a"))
	equal(t, "addresses", f.countIPAddresses(), 0)
	f.caller.DryRun = false
	f.mustCreate(f.service(""), fmt.Sprintf(serviceManifest, "a"))
	f.caller.DryRun = true
	if _, _, err := f.Delete(f.ctx, f.service("a"), metav1.DeleteOptions{}, f.caller); err != nil {
		t.Fatal(err)
	}
	equal(t, "addresses", f.countIPAddresses(), 1)
}
