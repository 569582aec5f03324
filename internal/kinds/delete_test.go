package kinds_test

import (
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/object"
)

var plainUser = &user.DefaultInfo{Name: "plain"}

func expectError(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

func contains(lines []string, part string) bool {
	return slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, part) })
}

// TestGracefulDelete checks that a Pod on a node is deleted after a grace period, which a later delete can only
// shorten. A delete with the period 0 is immediate.
func TestGracefulDelete(t *testing.T) {
	s := findSample(t, "v1-Pod")
	for _, q := range []struct {
		grace []int64 // periods of consecutive deletes; -1 means that a delete specifies none
		want  int64   // remaining grace period; -1 means that the Pod is deleted
	}{
		{[]int64{-1}, 30}, {[]int64{5}, 5}, {[]int64{0}, -1},
		{[]int64{-1, -1}, 30}, {[]int64{-1, 5}, 5}, {[]int64{5, -1}, 5}, {[]int64{-1, 0}, -1},
	} {
		c := serveCluster(t, kinds.Config{})
		v := c.version(s.apiVersion, s.kind)
		c.mustCreate(v, s.object, s.text)
		var gone bool
		for _, grace := range q.grace {
			var o metav1.DeleteOptions
			if grace >= 0 {
				o.GracePeriodSeconds = &grace
			}
			var err error
			if _, gone, err = c.Engine.Delete(t.Context(), c.at(v, s.object, ""), o, c.by()); err != nil {
				t.Fatal(err)
			}
		}
		left := c.stored(v, s.object)
		if gone != (q.want < 0) || gone != (left == nil) {
			t.Errorf("%v: got gone %v, stored object %s", q.grace, gone, left)
		}
		if left == nil {
			continue
		}
		obj, err := v.Type.Load(left)
		if err != nil {
			t.Fatal(err)
		}
		if grace := obj.GetDeletionGracePeriodSeconds(); obj.GetDeletionTimestamp() == nil || grace == nil ||
			*grace != q.want {
			t.Errorf("%v: got %s, want the grace period %d", q.grace, left, q.want)
		}
	}
}

// TestDeleteWithoutGrace checks that objects of other kinds are deleted immediately, with any grace period, and that a
// delete with another UID fails.
func TestDeleteWithoutGrace(t *testing.T) {
	s, c := findSample(t, "v1-ConfigMap"), serveCluster(t, kinds.Config{})
	v := c.version(s.apiVersion, s.kind)
	c.mustCreate(v, s.object, s.text)
	other := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: new(types.UID("other"))}}
	if _, _, err := c.Engine.Delete(t.Context(), c.at(v, s.object, ""), other, c.by()); !apierrors.IsConflict(err) {
		t.Errorf("delete with another UID: got error %v, want a Conflict", err)
	}
	grace := metav1.DeleteOptions{GracePeriodSeconds: new(int64(5))}
	if _, gone, err := c.Engine.Delete(t.Context(), c.at(v, s.object, ""), grace, c.by()); !gone || err != nil {
		t.Errorf("delete with a grace period: got gone %v, error %v", gone, err)
	}
}

// TestDependents checks the default propagation policy of deletes. It is orphan for kinds that are older than owner
// references. An Event is deleted immediately even with this policy, because the garbage collector ignores Events.
func TestDependents(t *testing.T) {
	for name, want := range map[string]string{
		"batch-v1-Job": "orphan", "v1-ReplicationController": "orphan", "apps-v1-Deployment": "gone",
		"v1-ConfigMap": "gone",
	} {
		s, c := findSample(t, name), serveCluster(t, kinds.Config{})
		v := c.version(s.apiVersion, s.kind)
		c.mustCreate(v, s.object, s.text)
		o, gone, err := c.Engine.Delete(t.Context(), c.at(v, s.object, ""), metav1.DeleteOptions{}, c.by())
		got := "gone"
		if !gone && err == nil {
			got = strings.Join(object.Finalizers(c.tree(o)), " ")
		}
		if err != nil || got != want {
			t.Errorf("%s: got %s, error %v; want %s", name, got, err, want)
		}
	}
	s, c := findSample(t, "v1-Event"), serveCluster(t, kinds.Config{})
	v := c.version(s.apiVersion, s.kind)
	c.mustCreate(v, s.object, s.text)
	o := metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationOrphan)}
	if _, gone, err := c.Engine.Delete(t.Context(), c.at(v, s.object, ""), o, c.by()); !gone || err != nil {
		t.Errorf("delete of an Event: got gone %v, error %v; want it deleted", gone, err)
	}
}
