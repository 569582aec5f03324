#!/bin/sh
# Creates an application, and reads the API through kubectl proxy without credentials.
set -e
kubectl create deployment hello-app --port=8080 --image=gcr.io/google-samples/hello-app:2.0
kubectl proxy --port=8080 &
sleep 2
curl --silent --show-error http://127.0.0.1:8080/api/
curl --silent --show-error 'http://127.0.0.1:8080/api/v1/namespaces/default/pods?limit=5'
kill $!
