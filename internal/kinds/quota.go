package kinds

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/resourcequota"

	"github.com/trellis-k8s/trellis/internal/kinds/define"
)

// upstreamQuotaStrategy includes the optional methods of upstream's strategy of ResourceQuotas.
type upstreamQuotaStrategy interface {
	define.Strategy
	rest.DeclarativeValidationStrategy
	rest.ResetFieldsStrategy
}

// quotaStrategy is upstream's strategy of ResourceQuotas with an additional warning. It warns of limits such as
// count/jobs, in which the group of the resource is missing.
type quotaStrategy struct {
	upstreamQuotaStrategy
	groups func(context.Context) map[string][]string // groups by plural name of a resource
}

func (c Config) quotaStrategy() define.Strategy {
	return quotaStrategy{resourcequota.Strategy, c.groups}
}

// WarningsOnCreate implements rest.RESTCreateStrategy.
func (s quotaStrategy) WarningsOnCreate(ctx context.Context, obj runtime.Object) []string {
	return append(s.upstreamQuotaStrategy.WarningsOnCreate(ctx, obj), s.countsWithoutGroup(ctx, obj)...)
}

// WarningsOnUpdate implements rest.RESTUpdateStrategy.
func (s quotaStrategy) WarningsOnUpdate(ctx context.Context, obj, old runtime.Object) []string {
	return append(s.upstreamQuotaStrategy.WarningsOnUpdate(ctx, obj, old), s.countsWithoutGroup(ctx, obj)...)
}

// countsWithoutGroup returns a warning for each limit such as count/jobs. Such a limit has no effect, because a name
// without a group refers to the core group (kubernetes#97765).
func (s quotaStrategy) countsWithoutGroup(ctx context.Context, obj runtime.Object) (warnings []string) {
	var names []string
	for limit := range obj.(*api.ResourceQuota).Spec.Hard {
		if name, ok := strings.CutPrefix(string(limit), "count/"); ok && !strings.Contains(name, ".") {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	served := s.groups(ctx)
	for _, name := range names {
		groups := served[name]
		if slices.Contains(groups, "") {
			continue
		}
		if len(groups) == 0 {
			groups = []string{"<group>"}
		}
		var use []string
		for _, g := range groups {
			use = append(use, "count/"+name+"."+g)
		}
		warnings = append(warnings, fmt.Sprintf(
			"spec.hard[count/%s]: has no effect, because the core group has no resource %q: use %s",
			name, name, strings.Join(use, " or ")))
	}
	return warnings
}

// groups maps the plural name of each resource to the sorted names of the groups that have such a resource.
func (c Config) groups(ctx context.Context) map[string][]string {
	all := map[string][]string{}
	if c.Catalog == nil {
		return all
	}
	catalog, err := c.Catalog(ctx)
	if err != nil {
		return all // the write then succeeds, only the warning is missing
	}
	for d := range catalog.Definitions() { // sorted by group
		if names := all[d.Names.Plural]; !slices.Contains(names, d.Group) {
			all[d.Names.Plural] = append(names, d.Group)
		}
	}
	return all
}
