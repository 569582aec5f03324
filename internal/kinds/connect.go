package kinds

import (
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/trellis-k8s/trellis/internal/kinds/define"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// podConnects returns the subresources that connect to the containers of a Pod.
func podConnects() []resource.Subresource {
	upgrades := resource.Connect{Methods: []string{http.MethodGet, http.MethodPost}, Upgrades: true}
	return []resource.Subresource{
		connect("attach", "PodAttachOptions", upgrades, "create", "get"),
		connect("exec", "PodExecOptions", upgrades, "create", "get"),
		connect("log", "PodLogOptions", resource.Connect{Methods: []string{http.MethodGet}, Reads: true}, "get"),
		connect("portforward", "PodPortForwardOptions", upgrades, "create", "get"),
		proxy("PodProxyOptions"),
	}
}

// proxy returns a subresource that forwards requests with any method. options is the kind of its options.
func proxy(options string) resource.Subresource {
	methods := []string{http.MethodDelete, http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPatch,
		http.MethodPost, http.MethodPut}
	return connect("proxy", options, resource.Connect{Methods: methods, Subpath: "path"}, "create", "delete", "get",
		"patch", "update")
}

// nodeProxy returns the subresource that forwards requests to a kubelet. Some of the kubelet's paths run a command or
// open a connection to a container.
func nodeProxy() resource.Subresource {
	s := proxy("NodeProxyOptions")
	s.Connect.Streams = []string{"attach", "exec", "portForward", "run"}
	return s
}

// connect returns a subresource for CONNECT requests. options is the kind of its options, in the core group.
func connect(name, options string, c resource.Connect, verbs ...string) resource.Subresource {
	gv := corev1.SchemeGroupVersion
	v := define.PostOnly(gv, resource.Names{Kind: options})
	v.Type.Internal, v.Type.External = nil, nil // options have no metadata
	c.Options = v
	c.Decode = func(query url.Values) (object.Tree, error) {
		obj := v.Type.New()
		if err := legacyscheme.ParameterCodec.DecodeParameters(query, gv, obj); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		t, err := resource.ToTree(obj)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		t["apiVersion"], t["kind"] = v.APIVersion, options
		return t, nil
	}
	c.Internal = func(t object.Tree) (runtime.Object, error) {
		obj, err := v.Type.Object(object.AppendJSON(nil, t))
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		return legacyscheme.Scheme.UnsafeConvertToVersion(obj, core.SchemeGroupVersion)
	}
	return resource.Subresource{Name: name, Verbs: verbs, Connect: &c}
}
