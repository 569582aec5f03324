package kinds

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// TestComponents checks the ComponentStatuses. The ComponentStatus of the store reports the store's error. Every
// other component is healthy if one of its Leases is current. A Lease that is incomplete or cannot be decoded is a
// problem.
func TestComponents(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	lease := func(holder string, renewed time.Time) string {
		return fmt.Sprintf(`{"spec":{"holderIdentity":%q,"leaseDurationSeconds":15,"renewTime":%q}}`, holder,
			renewed.Format("2006-01-02T15:04:05.000000Z"))
	}
	for name, c := range map[string]struct {
		failure error
		leases  map[string]string
		want    string
	}{
		"none":    {want: "etcd-0 True ok"},
		"failing": {failure: errors.New("disk full"), want: "etcd-0 False error disk full"},
		"healthy": {leases: map[string]string{"kube-controller-manager": lease("a", now),
			"kube-scheduler": lease("a", now.Add(-15*time.Second))},
			want: "etcd-0 True ok, controller-manager True ok, scheduler True ok"},
		"expired": {leases: map[string]string{"kube-scheduler": lease("a", now.Add(-16*time.Second)),
			"trellis-cluster-controllers": lease("", now)},
			want: "etcd-0 True ok, controller-manager False Lease kube-system/trellis-cluster-controllers has no " +
				"holder, scheduler False Lease kube-system/kube-scheduler of a expired at 2025-12-31T23:59:59Z"},
		"best of two": {leases: map[string]string{"kube-controller-manager": lease("a", now),
			"trellis-cluster-controllers": lease("", now)},
			want: "etcd-0 True ok, controller-manager True ok"},
		"incomplete": {leases: map[string]string{"kube-scheduler": `{"spec":{"holderIdentity":"a"}}`,
			"other": lease("a", now)},
			want: "etcd-0 True ok, scheduler False Lease kube-system/kube-scheduler has no renewTime or " +
				"leaseDurationSeconds"},
	} {
		l := new(storage.Loader)
		// sorted, as the keys must be
		for _, of := range []string{"kube-controller-manager", "kube-scheduler", "other",
			"trellis-cluster-controllers"} {
			if value := c.leases[of]; value != "" {
				if err := l.Add(&storage.Record{Key: "/registry/leases/kube-system/" + of,
					Value: []byte(value)}); err != nil {
					t.Fatal(err)
				}
			}
		}
		head := l.Snapshot(1)
		config := Config{
			StorageHealth: func() error { return c.failure },
			Head:          func() *storage.Snapshot { return head },
			Now:           func() time.Time { return now },
		}
		got := ""
		for i, o := range config.components(context.Background()) {
			condition := o["conditions"].([]any)[0].(object.Tree)
			if i > 0 {
				got += ", "
			}
			got += fmt.Sprint(object.Name(o), " ", condition["status"], " ")
			if text, failed := condition["error"]; failed {
				got += fmt.Sprint("error ", text)
			} else {
				got += fmt.Sprint(condition["message"])
			}
		}
		if got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, c.want)
		}
	}
}
