// Package crontab converts CronTabs. To add another kind, write a function like convert and add it to Handler.
package crontab

import (
	"errors"
	"net"
	"net/http"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/conversionwebhook"
)

// Handler returns a handler of ConversionReviews at /crdconvert, and of a health check at /readyz.
func Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/crdconvert", &conversionwebhook.Handler{Kinds: map[schema.GroupKind]conversionwebhook.Func{
		{Group: "example.com", Kind: "CronTab"}: convert,
	}})
	mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
	return mux
}

// convert converts a CronTab between v1beta1 (hostPort) and v1 (host, port).
func convert(obj *unstructured.Unstructured, toVersion string) (*unstructured.Unstructured, error) {
	crontab := obj.Object
	switch toVersion {
	case "example.com/v1":
		hostPort, found := crontab["hostPort"].(string)
		if !found {
			return obj, nil
		}
		host, port, err := net.SplitHostPort(hostPort)
		if err != nil {
			return nil, errors.New("hostPort could not be parsed into a separate host and port")
		}
		delete(crontab, "hostPort")
		crontab["host"], crontab["port"] = host, port
	case "example.com/v1beta1":
		host, hasHost := crontab["host"].(string)
		port, hasPort := crontab["port"].(string)
		if !hasHost && !hasPort {
			return obj, nil
		}
		delete(crontab, "host")
		delete(crontab, "port")
		crontab["hostPort"] = net.JoinHostPort(host, port)
	default:
		return nil, errors.New("unsupported version of CronTab: " + toVersion)
	}
	return obj, nil
}
