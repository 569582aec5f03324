package plugins

import (
	corev1 "k8s.io/api/core/v1"
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/server/storage"
	"k8s.io/kubernetes/pkg/quota/v1/install"

	"github.com/trellis-k8s/trellis/internal/admission"
	store "github.com/trellis-k8s/trellis/internal/storage"
)

// counting tells upstream's plugin ResourceQuota what counts.
type counting struct{ quota.Configuration }

// newCounting counts more than the number of objects for what is of the core group: upstream counts the devices of ResourceClaims by
// informers that tell of changes.
func newCounting() (counting, error) {
	special := storage.NewResourceConfig()
	special.EnableVersions(corev1.SchemeGroupVersion)
	c, err := install.NewQuotaConfigurationForAdmission(nil, special)
	return counting{c}, err
}

// Initialize implements upstream's PluginInitializer.
func (c counting) Initialize(p upstream.Interface) {
	if p, ok := p.(initializer.WantsQuotaConfiguration); ok {
		p.SetQuotaConfiguration(c)
	}
}

// limits is upstream's plugin ResourceQuota, which is asked about writes in namespaces that have a ResourceQuota.
type limits struct {
	*plugin
	from Informers
}

// Handles implements admission.Plugin.
func (q limits) Handles(r *admission.Request) bool {
	d := q.from.Catalog().Definition("", "resourcequotas")
	if d == nil || r.Namespace == "" {
		return false
	}
	head := q.from.Head()
	return found(head, d.Prefix) && found(head, d.Prefix+r.Namespace+"/") && q.plugin.Handles(r)
}

// found is whether there is a key with a prefix.
func found(head *store.Snapshot, prefix string) bool {
	for range head.Walk(prefix, "") {
		return true
	}
	return false
}
