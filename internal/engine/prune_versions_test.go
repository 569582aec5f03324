package engine

import (
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/internal/object"
)

// TestStrategyNonePrunesUndeclaredFields checks reads and writes with the conversion strategy None, which changes
// no fields. Reads prune the fields that the requested version does not declare. The fields stay stored until a
// write at that version (CNV-003, CNV-002).
func TestStrategyNonePrunesUndeclaredFields(t *testing.T) {
	f := newFixture(t)
	narrow := strings.Replace(cronTabSchema, `"color":{"type":"string"},`, "", 1)
	f.writeCRD(cronTabs(cronTabSchema, narrow))
	f.mustCreate(f.cron(""), `{"metadata":{"name":"c"},"spec":{"color":"red","image":"i"}}`)
	other := f.target("stable.example.com", "v2", "crontabs", "default")
	other.Name = "c"
	equal(t, "at v2", f.get(other)["spec"], map[string]any{"image": "i"})
	equal(t, "at v1", f.get(f.cron("c"))["spec"], map[string]any{"color": "red", "image": "i"})
	f.mustEdit(other, func(t object.Tree) { set(t, "spec.image", "j") })
	equal(t, "at v1 after a write at v2", f.get(f.cron("c"))["spec"], map[string]any{"image": "j"})
}
