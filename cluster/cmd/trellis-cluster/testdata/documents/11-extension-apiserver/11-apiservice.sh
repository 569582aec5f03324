#!/bin/sh
# Registers the API group with the CA that signed the certificate.
kubectl create -f - <<END
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1alpha1.wardle.example.com}
spec:
  group: wardle.example.com
  version: v1alpha1
  service: {namespace: wardle, name: wardle-server}
  caBundle: $(base64 -w0 ca.crt)
  versionPriority: 9
  groupPriorityMinimum: 900
END
