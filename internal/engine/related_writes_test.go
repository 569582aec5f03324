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
	addresses107 = "/registry/ipaddresses/10.0.0.7"
	wants107     = `{"metadata":{"name":%q},"spec":{"clusterIP":"10.0.0.7","ports":[{"port":80}]}}`
)

func (w *world) ipAddress(name string) Target {
	w.Helper()
	t := w.at("networking.k8s.io", "v1", "ipaddresses", "")
	t.Name = name
	return t
}

// ipAddresses is how many addresses there are.
func (w *world) ipAddresses() int { return w.Store.Head().Count("/registry/ipaddresses/", "") }

// EXT-020: the IPAddress of a Service comes in the commit that makes the Service, as kube-apiserver's allocator makes it.
func TestAddressComesWithItsService(t *testing.T) {
	w := newWorld(t)
	var judged []storage.Write
	w.beforeCommit = func(writes []storage.Write) { judged = writes }
	w.mustCreate(w.service(""), fmt.Sprintf(wants107, "a"))
	equal(t, "writes in one commit", []string{judged[0].Key, judged[1].Key}, []string{"/registry/services/specs/default/a", addresses107})
	got := w.get(w.ipAddress("10.0.0.7"))
	equal(t, "labels", object.LabelMap(got), map[string]string{"ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"})
	equal(t, "spec", got["spec"], object.Tree{"parentRef": object.Tree{"resource": "services", "namespace": "default", "name": "a"}})
	equal(t, "manager", valueAt(object.Metadata(got)["managedFields"].([]any)[0].(object.Tree), "manager"), "kube-apiserver")
	if object.UID(got) == "" {
		t.Error("it has no uid")
	}
}

// EXT-020: it goes in the commit with which the Service needs it no longer, in whatever way that comes about.
func TestAddressGoesWithItsService(t *testing.T) {
	for name, end := range map[string]func(w *world) error{
		"delete": func(w *world) error {
			_, _, err := w.Delete(w.ctx, w.service("a"), metav1.DeleteOptions{}, w.caller)
			return err
		},
		"delete of a collection": func(w *world) error {
			_, err := w.DeleteCollection(w.ctx, w.service(""), metav1.DeleteOptions{}, ListOptions{}, w.caller)
			return err
		},
		"change to ExternalName": func(w *world) error {
			_, err := w.patch(w.service("a"), merging, `{"spec":{"type":"ExternalName","externalName":"example.com","clusterIP":null,"clusterIPs":null}}`)
			return err
		},
		"the last finalizer": func(w *world) error {
			w.mustPatch(w.service("a"), merging, `{"metadata":{"finalizers":["example.com/f"]}}`)
			if _, _, err := w.Delete(w.ctx, w.service("a"), metav1.DeleteOptions{}, w.caller); err != nil {
				return err
			}
			if w.ipAddresses() != 1 {
				return errors.New("it has gone before the Service")
			}
			_, err := w.patch(w.service("a").sub("status"), merging, `{"metadata":{"finalizers":null}}`)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.mustCreate(w.service(""), fmt.Sprintf(wants107, "a"))
			var last []storage.Write
			w.beforeCommit = func(writes []storage.Write) { last = writes }
			if err := end(w); err != nil {
				t.Fatal(err)
			}
			equal(t, "addresses", w.ipAddresses(), 0)
			equal(t, "writes of the last commit", len(last), 2)
			w.mustCreate(w.service(""), fmt.Sprintf(wants107, "b"))
		})
	}
}

// An address that another object has meanwhile is not the Service's to delete; nor does a Service go without what somebody
// has deleted before.
func TestAddressThatIsNotTheServices(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct{ resource, left string }{{"gateways", "1"}, {"", "0"}} {
		w.mustCreate(w.service(""), fmt.Sprintf(wants107, "a"))
		w.remove(addresses107)
		if c.resource != "" {
			w.mustCreate(w.ipAddress(""), `{"metadata":{"name":"10.0.0.7"},"spec":{"parentRef":{"resource":"gateways","name":"g"}}}`)
		}
		if _, _, err := w.Delete(w.ctx, w.service("a"), metav1.DeleteOptions{}, w.caller); err != nil {
			t.Fatal(err)
		}
		equal(t, "addresses", fmt.Sprint(w.ipAddresses()), c.left)
		if w.ipAddresses() > 0 {
			w.remove(addresses107)
		}
	}
}

// Nobody is given an address that somebody takes between judgement and commit; where any will do, it is another one.
func TestAddressTakenBeforeCommit(t *testing.T) {
	service := func(w *world, ip string) {
		w.mustCreate(w.service(""), fmt.Sprintf(`{"metadata":{"name":"first"},"spec":{"clusterIP":%q,"ports":[{"port":80}]}}`, ip))
	}
	other := func(w *world, ip string) {
		w.mustCreate(w.ipAddress(""), fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"parentRef":{"resource":"gateways","name":"g"}}}`, ip))
	}
	for name, take := range map[string]func(*world, string){"by a Service": service, "by somebody else": other} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			taking := func(judged storage.Write) { take(w, addresses(t, judged).ClusterIP) }
			r := w.before(taking)
			_, err := w.create(w.service(""), fmt.Sprintf(wants107, "late"))
			w.refused(err, 422, metav1.StatusReasonInvalid, `spec.clusterIPs: Invalid value: ["10.0.0.7"]: failed to allocate IP 10.0.0.7: provided IP is already allocated`)
			r.tried(1)
			w = newWorld(t)
			r = w.before(taking)
			w.mustCreate(w.service(""), `{"metadata":{"name":"late"},"spec":{"ports":[{"port":80}]}}`)
			r.tried(2)
			equal(t, "addresses", w.ipAddresses(), 2)
		})
	}
}

// A Service is deleted from anew where somebody writes its IPAddress before the commit.
func TestAddressWrittenBeforeCommit(t *testing.T) {
	w := newWorld(t)
	w.mustCreate(w.service(""), fmt.Sprintf(wants107, "a"))
	r := w.before(func(storage.Write) {
		w.mustPatch(w.ipAddress("10.0.0.7"), merging, `{"metadata":{"labels":{"a":"b"}}}`)
	})
	if _, _, err := w.Delete(w.ctx, w.service("a"), metav1.DeleteOptions{}, w.caller); err != nil {
		t.Fatal(err)
	}
	r.tried(2)
	equal(t, "addresses", w.ipAddresses(), 0)
}

// A dry run takes no address and frees none.
func TestAddressesOfDryRuns(t *testing.T) {
	w := newWorld(t)
	w.caller.DryRun = true
	w.mustCreate(w.service(""), fmt.Sprintf(wants107, "a"))
	equal(t, "addresses", w.ipAddresses(), 0)
	w.caller.DryRun = false
	w.mustCreate(w.service(""), fmt.Sprintf(wants107, "a"))
	w.caller.DryRun = true
	if _, _, err := w.Delete(w.ctx, w.service("a"), metav1.DeleteOptions{}, w.caller); err != nil {
		t.Fatal(err)
	}
	equal(t, "addresses", w.ipAddresses(), 1)
}
