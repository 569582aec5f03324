package kinds

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/registry/apiservice"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// aggregation returns APIService, the kind that registers another server for a group version.
func aggregation() []entry {
	return []entry{{
		kind: "APIService", plural: "apiservices", versions: versions{apiregistrationv1.SchemeGroupVersion},
		categories: extensions, prefix: "apiregistration.k8s.io/apiservices",
		main: apiservice.NewStrategy(aggregator), status: apiservice.NewStatusStrategy(aggregator),
		columns: apiServiceColumns,
	}}
}

// aggregator is legacyscheme.Scheme. Its initialization adds the types of k8s.io/kube-aggregator to the scheme,
// because an import of that package does not.
var aggregator = func() *runtime.Scheme {
	install.Install(legacyscheme.Scheme)
	return legacyscheme.Scheme
}()

func apiServiceColumns() []resource.Column {
	return []resource.Column{
		nameColumn(),
		cellColumn("Service", "The reference to the service that hosts this API endpoint.", func(t object.Tree) any {
			if name := text(t, "spec", "service", "name"); name != "" {
				return text(t, "spec", "service", "namespace") + "/" + name
			}
			return "Local"
		}),
		cellColumn("Available", "Whether this service is available.", available),
		ageColumn(),
	}
}

// available returns the status of the condition Available, followed by the reason if the status is not True.
func available(t object.Tree) any {
	for _, c := range list(t, "status", "conditions") {
		c, _ := c.(object.Tree)
		if text(c, "type") != string(apiregistrationv1.Available) {
			continue
		}
		status, reason := text(c, "status"), text(c, "reason")
		if status != string(apiregistrationv1.ConditionTrue) && reason != "" {
			status += " (" + reason + ")"
		}
		return status
	}
	return string(apiregistrationv1.ConditionUnknown)
}
