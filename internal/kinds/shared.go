package kinds

import (
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/trellis-k8s/trellis/internal/crd/definition"
	"github.com/trellis-k8s/trellis/internal/kinds/crd"
	"github.com/trellis-k8s/trellis/internal/kinds/define"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// ServerAddresses is the prefix of keys whose last part is the address of a running kube-apiserver. The values are
// Endpoints.
const ServerAddresses = "/registry/masterleases/"

// everywhere lists the resources whose objects affect the results of other requests.
var everywhere = map[string]bool{
	"customresourcedefinitions": true, "apiservices": true,
	"roles": true, "rolebindings": true, "clusterroles": true, "clusterrolebindings": true,
	"mutatingwebhookconfigurations": true, "validatingwebhookconfigurations": true,
	"mutatingadmissionpolicies": true, "mutatingadmissionpolicybindings": true,
	"validatingadmissionpolicies": true, "validatingadmissionpolicybindings": true,
	"resourcequotas": true, "flowschemas": true, "prioritylevelconfigurations": true,
}

// Shared describes the built-in kinds in an etcd that several servers share, also with kube-apiserver.
//
// codecs holds the codecs of values by the prefixes of their keys. kube-apiserver stores built-in kinds as protobuf,
// except CustomResourceDefinitions and APIServices. It stores APIServices as JSON, like objects of custom kinds, so
// they have no codec.
//
// prefixes holds the key prefixes of the kinds whose objects affect the results of other requests. A write of such an
// object should return after all servers have applied it.
func Shared() (codecs storage.Codecs, prefixes []string) {
	codecs = storage.Codecs{definition.CRDPrefix: crd.Codec()}
	for _, d := range Definitions(Config{}) {
		if d.Stored() && d.Storage.HasProtobuf() && d.Strategy != nil && d.Group != apiregistrationv1.GroupName {
			codecs[d.Prefix] = define.Codec(d)
			if d.Group == "" && d.Names.Plural == "endpoints" {
				codecs[ServerAddresses] = codecs[d.Prefix]
			}
		}
		if everywhere[d.Names.Plural] {
			prefixes = append(prefixes, d.Prefix)
		}
	}
	return codecs, prefixes
}
