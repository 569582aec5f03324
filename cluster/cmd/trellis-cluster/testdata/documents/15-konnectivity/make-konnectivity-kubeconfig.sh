#!/bin/sh
# Creates a kubeconfig for the tunnel server, with a certificate that the cluster's CA signs.
set -eu
user=system:konnectivity-server
pki=/etc/kubernetes/pki
openssl req -new -newkey rsa:2048 -nodes -keyout konnectivity.key -out konnectivity.csr -subj "/CN=$user"
openssl x509 -req -sha256 -days 375 -CAcreateserial -CA $pki/ca.crt -CAkey $pki/ca.key -in konnectivity.csr -out konnectivity.crt
address=$(kubectl config view -o jsonpath='{.clusters..server}')
config() { kubectl --kubeconfig /etc/kubernetes/konnectivity-server.conf config "$@"; }
config set-cluster kubernetes --embed-certs=true --certificate-authority $pki/ca.crt --server "$address"
config set-credentials $user --embed-certs=true --client-certificate konnectivity.crt --client-key konnectivity.key
config set-context $user@kubernetes --cluster kubernetes --user $user
config use-context $user@kubernetes
rm konnectivity.key konnectivity.csr konnectivity.crt
