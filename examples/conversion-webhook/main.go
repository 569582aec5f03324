// Command conversion-webhook is an example of a conversion webhook. It converts CronTabs between two versions.
// example.com/v1beta1 has the field hostPort. example.com/v1 has the fields host and port.
package main

import (
	"context"
	"flag"
	"log"
	"os/signal"
	"syscall"

	"github.com/trellis-k8s/trellis/conversionwebhook"
	"github.com/trellis-k8s/trellis/examples/conversion-webhook/crontab"
)

func main() {
	server := conversionwebhook.Server{Handler: crontab.Handler()}
	flag.StringVar(&server.Address, "address", ":8443", "address to listen on")
	flag.StringVar(&server.CertFile, "tls-cert-file", "/tls/tls.crt", "file with the serving certificate in PEM")
	flag.StringVar(&server.KeyFile, "tls-private-key-file", "/tls/tls.key",
		"file with the private key of -tls-cert-file")
	flag.StringVar(&server.ClientCAFile, "client-ca-file", "",
		"file with the CAs for client certificates (empty means that clients need no certificate)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
