// Command backend is an API server with constant responses, and a minimal proxy to it. Benchmarks compare the proxy of
// Trellis with that minimal proxy.
//
//	backend -listen ADDRESS -cert FILE -key FILE
//	    serves Flunders of any group version
//	backend -listen ADDRESS -cert FILE -key FILE -to ADDRESS
//	    proxies to that address with httputil.ReverseProxy, without authentication
package main

import (
	"crypto/tls"
	"flag"
	"fmt"
	"log"
	"net/http"
	"net/http/httputil"
	"strings"
	"time"
)

const (
	discovery = `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"%s","resources":[` +
		`{"name":"flunders","singularName":"flunder","namespaced":true,"kind":"Flunder",` +
		`"verbs":["get","list","watch"]}]}`
	object = `{"kind":"Flunder","apiVersion":"wardle.example.com/v1alpha1",` +
		`"metadata":{"name":"a","namespace":"default","resourceVersion":"1"},"spec":{"text":"%s"}}`
	items = 20_000 // number of objects in a list, with 1 KiB each
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8443", "`address` to listen on")
	to := flag.String("to", "", "`address` of the server to proxy to (empty means to serve constant responses)")
	certificate := flag.String("cert", "", "PEM `file` of the certificate")
	key := flag.String("key", "", "PEM `file` of the key")
	flag.Parse()
	handler := http.Handler(http.HandlerFunc(serve))
	if *to != "" {
		handler = &httputil.ReverseProxy{
			Rewrite: func(p *httputil.ProxyRequest) {
				p.Out.URL.Scheme, p.Out.URL.Host = "https", *to
				p.SetXForwarded()
			},
			Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true,
				MaxIdleConnsPerHost: 100},
		}
	}
	log.Fatal(http.ListenAndServeTLS(*listen, *certificate, *key, handler))
}

var (
	one  = []byte(fmt.Sprintf(object, strings.Repeat("x", 900)))
	list = []byte(`{"kind":"FlunderList","apiVersion":"wardle.example.com/v1alpha1",` +
		`"metadata":{"resourceVersion":"1"},"items":[` +
		strings.TrimSuffix(strings.Repeat(string(one)+",", items), ",") + `]}`)
)

func serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case strings.HasPrefix(r.URL.Path, "/apis/") && strings.Count(r.URL.Path, "/") == 3:
		fmt.Fprintf(w, discovery, strings.TrimPrefix(r.URL.Path, "/apis/"))
	case !strings.HasPrefix(r.URL.Path, "/apis/"):
		http.NotFound(w, r)
	case r.URL.Query().Get("watch") != "":
		for {
			fmt.Fprintf(w, `{"type":"ADDED","object":%s}`+"\n", one)
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(30 * time.Second):
			}
		}
	case strings.HasSuffix(r.URL.Path, "/flunders"):
		w.Header().Set("Content-Length", fmt.Sprint(len(list)))
		_, _ = w.Write(list)
	default:
		w.Header().Set("Content-Length", fmt.Sprint(len(one)))
		_, _ = w.Write(one)
	}
}
