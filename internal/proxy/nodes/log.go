package nodes

import (
	"context"
	"errors"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/registry/generic/rest"
	"k8s.io/apiserver/pkg/util/flushwriter"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// log returns a handler for the log of a container.
func (p *Proxy) log(
	ctx context.Context,
	pods getter,
	name string,
	o *core.PodLogOptions,
	fail Fail,
) (http.Handler, error) {
	if errs := validation.ValidatePodLogOptions(o, false); len(errs) > 0 {
		return nil, apierrors.NewInvalid(core.Kind("PodLogOptions"), name, errs)
	}
	location, transport, err := pod.LogLocation(ctx, pods, p.kubelets(p.kubelet.requests), name, o)
	if err != nil {
		return nil, err
	}
	streamer := &rest.LocationStreamer{
		Location: location, Transport: transport, ContentType: "text/plain", Flush: o.Follow,
		ResponseChecker: rest.NewGenericHttpResponseChecker(core.Resource("pods/log"),
			name), RedirectChecker: rest.PreventRedirects,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out, follow, contentType, err := streamer.InputStream(r.Context(), "", "")
		switch {
		case err != nil:
			fail(w, r, err)
		case out == nil: // the Pod has no node yet, so its log is empty
			w.WriteHeader(http.StatusNoContent)
		default:
			defer func() { _ = out.Close() }()
			answer(w, r, out, follow, contentType)
		}
	}), nil
}

// answer copies a log to the response as it arrives. If the log breaks off, the response breaks off, too.
func answer(w http.ResponseWriter, r *http.Request, out io.Reader, follow bool, contentType string) {
	if wsstream.IsWebSocketRequest(r) {
		_ = wsstream.NewReader(out, true, wsstream.NewDefaultReaderProtocols()).Copy(w, r)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	to := io.Writer(w)
	if follow { // flush each write
		to = flushwriter.Wrap(w)
	}
	from := &source{Reader: out}
	_, _ = io.Copy(to, from) // a write fails only when the client has gone
	if from.broken && !errors.Is(r.Context().Err(), context.Canceled) {
		_ = http.NewResponseController(w).Flush() // send the part that has arrived
		panic(http.ErrAbortHandler)               // so that the client does not consider the log complete
	}
}

// source is a reader that records whether a read failed before the end of the data.
type source struct {
	io.Reader
	broken bool
}

// Read implements io.Reader.
func (s *source) Read(b []byte) (int, error) {
	n, err := s.Reader.Read(b)
	s.broken = s.broken || err != nil && !errors.Is(err, io.EOF)
	return n, err
}
