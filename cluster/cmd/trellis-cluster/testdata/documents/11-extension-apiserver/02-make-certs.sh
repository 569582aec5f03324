#!/bin/sh
# Creates a CA and a certificate for the name of the Service.
set -eu
host=wardle-server.wardle.svc
openssl req -x509 -newkey rsa:2048 -nodes -days 90 -keyout ca.key -out ca.crt -subj "/CN=CA of the extension server"
openssl req -newkey rsa:2048 -nodes -keyout tls.key -out tls.csr -subj "/CN=$host"
echo "subjectAltName = DNS:$host" > names.txt
openssl x509 -req -sha256 -days 90 -CAcreateserial -CA ca.crt -CAkey ca.key -extfile names.txt -in tls.csr -out tls.crt
