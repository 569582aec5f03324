// Command conversion-webhook is an example of a conversion webhook: it converts CronTabs between example.com/v1beta1,
// where hostPort is one field, and example.com/v1, where host and port are two.
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
	flag.StringVar(&server.Address, "address", ":8443", "where to listen")
	flag.StringVar(&server.CertFile, "tls-cert-file", "/tls/tls.crt", "the serving certificate, in PEM")
	flag.StringVar(&server.KeyFile, "tls-private-key-file", "/tls/tls.key", "its key")
	flag.StringVar(&server.ClientCAFile, "client-ca-file", "", "CAs of the clients that may call; without it all may")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
