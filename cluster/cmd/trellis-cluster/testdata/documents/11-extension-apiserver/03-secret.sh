#!/bin/sh
kubectl create secret tls wardle-server-tls --namespace wardle --key tls.key --cert tls.crt
