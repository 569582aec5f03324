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

// log reads what a container has printed.
func (p *Proxy) log(ctx context.Context, pods getter, name string, o *core.PodLogOptions, fail Fail) (http.Handler, error) {
	if errs := validation.ValidatePodLogOptions(o, false); len(errs) > 0 {
		return nil, apierrors.NewInvalid(core.Kind("PodLogOptions"), name, errs)
	}
	location, by, err := pod.LogLocation(ctx, pods, p.kubelets(p.kubelet.requests), name, o)
	if err != nil {
		return nil, err
	}
	streamer := &rest.LocationStreamer{
		Location: location, Transport: by, ContentType: "text/plain", Flush: o.Follow,
		ResponseChecker: rest.NewGenericHttpResponseChecker(core.Resource("pods/log"), name), RedirectChecker: rest.PreventRedirects,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out, follow, contentType, err := streamer.InputStream(r.Context(), "", "")
		switch {
		case err != nil:
			fail(w, r, err)
		case out == nil: // it has no node yet, and has printed nothing
			w.WriteHeader(http.StatusNoContent)
		default:
			defer func() { _ = out.Close() }()
			answer(w, r, out, follow, contentType)
		}
	}), nil
}

// answer copies a log as it comes. Where it breaks off, so does the answer, which has begun.
func answer(w http.ResponseWriter, r *http.Request, out io.Reader, follow bool, contentType string) {
	if wsstream.IsWebSocketRequest(r) {
		_ = wsstream.NewReader(out, true, wsstream.NewDefaultReaderProtocols()).Copy(w, r)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	to := io.Writer(w)
	if follow { // each piece at once
		to = flushwriter.Wrap(w)
	}
	from := &source{Reader: out}
	_, _ = io.Copy(to, from) // a client that has gone need not be told
	if from.broken && !errors.Is(r.Context().Err(), context.Canceled) {
		_ = http.NewResponseController(w).Flush() // what has come is worth reading
		panic(http.ErrAbortHandler)               // the client must not take what it got for all
	}
}

// source knows whether it broke off.
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
