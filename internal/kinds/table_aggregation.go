package kinds

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/registry/apiservice"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/trellis-k8s/trellis/internal/kinds/define"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// aggregation returns APIService, the kind that registers another server for a group version.
func aggregation() []define.Entry {
	return []define.Entry{{
		Kind: "APIService", Plural: "apiservices", Versions: versions{apiregistrationv1.SchemeGroupVersion},
		Categories: extensions, Prefix: "apiregistration.k8s.io/apiservices",
		Main: apiservice.NewStrategy(aggregator), Status: apiservice.NewStatusStrategy(aggregator),
		Columns: apiServiceColumns,
	}}
}

// aggregator is legacyscheme.Scheme. Its initialization adds the types of k8s.io/kube-aggregator to the scheme,
// because an import of that package does not.
var aggregator = func() *runtime.Scheme {
	install.Install(legacyscheme.Scheme)
	return legacyscheme.Scheme
}()

func apiServiceColumns() []resource.Column {
	service := func(t object.Tree) any {
		if s := object.TreeAt(t, "spec", "service"); object.String(s, "name") != "" {
			return object.String(s, "namespace") + "/" + object.String(s, "name")
		}
		return "Local"
	}
	return []resource.Column{
		resource.NameColumn(),
		define.CellColumn("Service", "The reference to the service that hosts this API endpoint.", service),
		define.CellColumn("Available", "Whether this service is available.", available),
		resource.AgeColumn("string"),
	}
}

// available returns the status of the condition Available, followed by the reason if the status is not True.
func available(t object.Tree) any {
	c := object.Condition(object.TreeAt(t, "status"), string(apiregistrationv1.Available))
	if c == nil {
		return string(apiregistrationv1.ConditionUnknown)
	}
	status, reason := object.String(c, "status"), object.String(c, "reason")
	if status != string(apiregistrationv1.ConditionTrue) && reason != "" {
		status += " (" + reason + ")"
	}
	return status
}
