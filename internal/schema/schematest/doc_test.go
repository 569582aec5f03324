// Package schematest proves that internal/schema says of any schema and any object what upstream says. A generator
// makes both, the corpus brings real ones, and every one goes through the calls that upstream's create and
// update strategies make. It has tests only: what it is measured against may not be imported elsewhere.
//
// How much of upstream the generator reaches:
//
//	TEST_SEEDS=20000 go test -run TestRandom -coverprofile=cover.out -coverpkg=$(echo \
//	  k8s.io/apiextensions-apiserver/pkg/apiserver/schema/{pruning,defaulting,listtype,objectmeta,cel} \
//	  k8s.io/apiextensions-apiserver/pkg/apiserver/validation \
//	  k8s.io/kube-openapi/pkg/validation/validate | tr ' ' ,) ./internal/schema/schematest
//
// Of the statements of the functions that a write calls at all, 95 % of listtype, 94 % of pruning, 87 % of objectmeta, 85 % of
// validation, 83 % of defaulting, 80 % of cel and 78 % of validate; most others serve keywords and Go types that no CRD has.
package schematest
