echo sunny
